"""What the fork server has found out about hanging workers: in short, and as files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..core.hangs import flight_records, tracebacks
from ..core.protocol.model import RankState

# Where the kernel waits for a file system in user space (FUSE), in state S, as for any other in D.
FUSE = ("request_wait_answer", "fuse_")


class HangEvidence(NamedTuple):
    """Of the ranks of one agent, to be kept in this directory."""

    directory: Path
    number: int
    ranks: Sequence[Mapping[str, Any]]  # each as `ProgressWatch.evidence` tells it
    native: Mapping[int, str]  # stacks, by rank


def state_of(found: Mapping[str, Any]) -> RankState:
    """`found` is what `ProgressWatch.evidence` tells of one rank."""
    stack = tracebacks.main_thread(found["stacks"])
    busy = found["busy"] and not tracebacks.waits_for_gpu(str((found["records"] or {}).get("call")))
    waits = flight_records.awaited(found["records"])
    if waits is None:
        name = tracebacks.collective(stack)
        if not name and flight_records.is_silent(found["records"]) and not busy:
            name = tracebacks.implied_collective(stack)
        waits = ("", 0, name) if name else None
    states = [
        "D" if process["wchan"].startswith(FUSE) else process["state"]
        for process in found["processes"]
    ]
    return RankState(
        rank=found["rank"],
        place=tracebacks.place(stack),
        state=next((s for s in ("D", "T") if s in states), states[0] if states else ""),
        busy=busy,
        debugged=tracebacks.is_debugged(stack),
        waits=waits,
    )


def files_of(evidence: HangEvidence) -> dict[str, str]:
    """Their names and texts: for each rank what it does, its collectives if it has told, and its
    native stacks where they are known.
    """
    files = {f"rank-{rank}.native.txt": text for rank, text in evidence.native.items()}
    for found in evidence.ranks:
        rank = found["rank"]
        lines = [f"rank {rank}, pid {found['pid']}: {found['phase']}, step {found['step']}"]
        lines += [
            "process {pid} ({name}): state {state}, {threads} threads, waits in {wchan}".format(**p)
            for p in found["processes"]
        ]
        lines += ["", found["stacks"]]
        for pid, stack in found["forked"]:
            lines += [f"process {pid}, which it has forked:", stack]
        files[f"rank-{rank}.txt"] = "\n".join(lines)
        if found["records"] is not None:
            files[f"rank-{rank}.collectives.json"] = json.dumps(found["records"])
    return files
