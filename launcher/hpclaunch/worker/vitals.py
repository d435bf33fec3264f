"""What the workers do and use, for people who look at the job: only read while somebody does."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

from .processes import STARTED, stat
from .progress_watch import CPU_TIMES, ProgressWatch, tree

RESIDENT = 1  # fields of /proc/PID/statm: pages
TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")

# pid -> (when it was looked at, seconds of CPU time until then)
Used: TypeAlias = Mapping[int, tuple[float, float]]


class VitalSigns:
    """Of the workers of one round after the other."""

    def __init__(self, progress: ProgressWatch) -> None:
        self.progress = progress
        self._used: dict[int, tuple[float, float]] = {}

    def of(self, pids: Mapping[int, int]) -> list[dict[str, Any]]:
        """Return the fields of RankVitals (core/protocol/model.py) for each. `pids` are those of
        the living workers, by rank."""
        before, self._used = self._used, {}
        return [self._of_rank(rank, pid, before) for rank, pid in sorted(pids.items())]

    def _of_rank(self, rank: int, pid: int, before: Used) -> dict[str, Any]:
        phase, steps, step = self.progress.whereabouts(rank)
        processes = [(process, fields) for process in tree(pid) if (fields := stat(process))]
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        used = sum(sum(map(int, fields[CPU_TIMES])) for _, fields in processes) / TICKS
        own = dict(processes).get(pid)
        begun = now if own is None else int(own[STARTED]) / TICKS
        since, used_before = before.get(pid, (begun, 0.0))
        self._used[pid] = (now, used)
        return {
            "rank": rank,
            "phase": phase,
            "steps": steps,
            "step": step,
            "cpu": round(max(0.0, used - used_before) / max(1 / TICKS, now - since), 3),
            "memory": sum(resident(process) for process, _ in processes),
        }


def resident(pid: int) -> int:
    """In bytes; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as f:
            return int(f.read().split()[RESIDENT]) * PAGE
    except OSError:
        return 0
