"""Reads torch's flight recorder: the collectives that a rank has begun, and those not yet done.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp, from torch 2.8 on for every backend, and
before that for NCCL. Of gloo's entries only "retired" tells that one is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

MOST_GROUPS = 8


class Collectives(NamedTuple):
    """Of one rank; a group is named as torch names it."""

    begun: tuple[tuple[str, int], ...]  # (group, number of the last one that it has begun)
    waits: tuple[str, int, str] | None  # (group, number, name) of the first one that is not done


def read(records: Mapping[str, Any] | None) -> Collectives:
    begun: dict[str, int] = {}
    waits = None
    for entry in (records or {}).get("entries", ()):
        if not isinstance(entry, dict) or entry.get("is_p2p"):
            continue
        group = str((entry.get("process_group") or ["?"])[0])
        number = int(entry.get("collective_seq_id", 0))
        begun[group] = max(number, begun.get(group, 0))
        if waits is None and not entry.get("retired") and entry.get("state") != "completed":
            name = str(entry.get("profiling_name", "")).rpartition(":")[2]
            waits = (group, number, name)
    return Collectives(tuple(list(begun.items())[:MOST_GROUPS]), waits)
