"""Reads torch's flight recorder: the collectives that a rank has begun and that are not yet done.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp, from torch 2.8 on for every backend, and
before that for NCCL. Of gloo's entries only "retired" tells that one is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Collective = tuple[str, int, str]  # (process group as torch names it, number, name)


def awaited(records: Mapping[str, Any] | None) -> Collective | None:
    """The first collective of a rank that is not done; None if all are, or nothing is recorded."""
    for entry in entries(records):
        if not entry.get("retired") and entry.get("state") != "completed":
            group = str((entry.get("process_group") or ["?"])[0])
            name = str(entry.get("profiling_name", "")).rpartition(":")[2]
            return group, int(entry.get("collective_seq_id", 0)), name
    return None


def entries(records: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Those of collectives, the oldest first."""
    found = (records or {}).get("entries", ())
    return [entry for entry in found if isinstance(entry, dict) and not entry.get("is_p2p")]
