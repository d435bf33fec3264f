"""Read torch's flight recorder: the collectives that a rank has begun and not finished.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp, since torch 2.8 for every backend, before
for NCCL only. In gloo's entries, only "retired" shows that a collective is done. If NCCL coalesces
several operations, only the last entry shows that they are done. Point-to-point messages, such as
"recv 0<-1", are numbered separately; gloo does not record them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..protocol.wording import plain

LONGEST = 60  # characters of a name
LARGEST = 1 << 62  # bound on the number of a collective: a larger one would not fit in a message

Collective = tuple[str, int, str]  # (process group as torch names it, number, name)


def awaited(records: Mapping[str, Any] | None) -> Collective | None:
    """Return the first collective or message of a rank that is not done; None if all are done, or
    nothing is recorded.

    A group runs its collectives in order, so all collectives before a done one are done too.
    Messages between different pairs of ranks may overtake one another.
    """
    done: dict[str, int] = {}
    delivered: set[tuple[str, int]] = set()
    begun: list[tuple[Collective, bool]] = []
    for entry in _entries(records):
        group, number, _ = named = _named(entry)
        if not (entry.get("retired") or entry.get("state") == "completed"):
            begun.append((named, _is_message(entry)))
        elif _is_message(entry):
            delivered.add((group, number))
        else:
            done[group] = max(number, done.get(group, 0))
    for named, is_message in begun:
        group, number, _ = named
        if (group, number) not in delivered if is_message else number > done.get(group, 0):
            return named
    return None


def is_silent(records: Mapping[str, Any] | None) -> bool:
    """Return whether the worker has answered, but torch has recorded nothing."""
    return records is not None and not _entries(records)


def _entries(records: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the entries, the oldest first."""
    found = (records or {}).get("entries")
    some = found if isinstance(found, list) else ()
    return [entry for entry in some if isinstance(entry, dict)]


def _is_message(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("is_p2p"))


def _named(entry: Mapping[str, Any]) -> Collective:
    groups = entry.get("process_group")
    number = entry.get("p2p_seq_id" if _is_message(entry) else "collective_seq_id")
    group = str(groups[0]) if isinstance(groups, list) and groups else "?"
    name = str(entry.get("profiling_name", "")).rpartition(":")[2]
    # torch counts collectives from 1. One without a sensible number is 0, and counts as done.
    known = number if isinstance(number, int) and 0 <= number < LARGEST else 0
    return group[:LONGEST], known, plain(name[:LONGEST])
