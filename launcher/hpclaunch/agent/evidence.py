"""The evidence of a hang, which the fork server collects: a summary for the core, and files. It
has native stacks if py-spy is in PATH.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..core.hangs import flight_records, tracebacks
from ..core.protocol import events
from ..core.protocol.model import Query, RankState
from ..system.shared.errands import Answer, ReadStacks, Stacks
from .errands import Errands

PY_SPY_LIMIT = 1.0  # seconds for all ranks, including a start of the errand service

# Kernel functions in which a process waits for a file system in user space (FUSE). Its state is S,
# and is treated like D.
FUSE = ("request_wait_answer", "fuse_")


class HangEvidence(NamedTuple):
    """The evidence from the ranks of one agent."""

    directory: Path  # for the files
    query: Query
    ranks: Sequence[Mapping[str, Any]]  # each as `ProgressWatch.evidence` returns it
    native: Mapping[int, str]  # stacks, by rank


class NativeStacks:
    def __init__(self, errands: Errands) -> None:
        self._errands = errands
        self._py_spy = shutil.which("py-spy")  # looked up now: a file system may stall later

    def add_to(
        self, found: HangEvidence, take: Callable[[HangEvidence], list[events.Event]]
    ) -> list[events.Event]:
        """Call `take` later with this evidence and its native stacks, or at once if there are none.
        Return the events that follow at once.
        """
        if self._py_spy is None or not found.ranks:
            return take(found)
        # Time may run out, so ranks that wait in a collective are last: they are rarely at fault.
        asked = sorted(found.ranks, key=lambda rank: state_of(rank).waits is not None)

        def done(answer: Answer | None) -> list[events.Event]:
            texts = answer.texts if isinstance(answer, Stacks) else ()
            pairs = zip(asked, texts, strict=False)
            return take(found._replace(native={r["rank"]: text for r, text in pairs if text}))

        pids = tuple(rank["pid"] for rank in asked)
        until = time.monotonic() + PY_SPY_LIMIT
        self._errands.run(ReadStacks(self._py_spy, pids, until), done)
        return []


def state_of(found: Mapping[str, Any]) -> RankState:
    """Summarize the evidence of one rank, as `ProgressWatch.evidence` returns it."""
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
    """Return the texts of the files by name: for each rank its processes and stacks, and where
    known its collectives and native stacks.
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
