"""Reads torch's flight recorder: the collectives that a rank has begun and that are not yet done.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp, from torch 2.8 on for every backend, and
before that for NCCL. Of gloo's entries only "retired" tells that one is done. Of several operations
that NCCL does as one, only the last entry tells it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..protocol.wording import plain

LONGEST = 60  # characters of a name

Collective = tuple[str, int, str]  # (process group as torch names it, number, name)


def awaited(records: Mapping[str, Any] | None) -> Collective | None:
    """The first collective of a rank that is not done; None if all are, or nothing is recorded.

    A group does one after the other, so what comes before one that is done is done as well.
    """
    done: dict[str, int] = {}
    begun: list[Collective] = []
    for entry in _entries(records):
        group, number, _ = collective = _named(entry)
        if entry.get("retired") or entry.get("state") == "completed":
            done[group] = max(number, done.get(group, 0))
        else:
            begun.append(collective)
    return next((c for c in begun if c[1] > done.get(c[0], 0)), None)


def _entries(records: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Those of collectives, the oldest first."""
    found = (records or {}).get("entries")
    some = found if isinstance(found, list) else ()
    return [entry for entry in some if isinstance(entry, dict) and not entry.get("is_p2p")]


def _named(entry: Mapping[str, Any]) -> Collective:
    groups, number = entry.get("process_group"), entry.get("collective_seq_id")
    group = str(groups[0]) if isinstance(groups, list) and groups else "?"
    name = str(entry.get("profiling_name", "")).rpartition(":")[2]
    known = number if isinstance(number, int) else 0
    return group[:LONGEST], known, plain(name[:LONGEST])
