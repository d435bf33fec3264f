"""The activity and resources of the workers, which are only read while somebody watches the job."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from .fork_server_messages import RankVitals
from .processes import CPU_TIMES, STARTED, TICKS, read_proc, stat
from .progress_watch import ProgressWatch
from .worker_processes import tree

RESIDENT = 1  # fields of /proc/PID/statm: pages
PAGE = os.sysconf("SC_PAGE_SIZE")


class VitalSigns:
    """The use of CPUs and memory by workers, as the difference to the last reading."""

    def __init__(self, progress: ProgressWatch) -> None:
        self._progress = progress
        # pid -> (when it was read, seconds of CPU time until then)
        self._used: dict[int, tuple[float, float]] = {}

    def of(self, pids: Mapping[int, int]) -> list[RankVitals]:
        """Return the vitals of each living worker; `pids` are by rank."""
        before, self._used = self._used, {}
        return [self._of_rank(rank, pid, before) for rank, pid in sorted(pids.items())]

    def _of_rank(
        self, rank: int, pid: int, before: Mapping[int, tuple[float, float]]
    ) -> RankVitals:
        phase, steps, step = self._progress.whereabouts(rank)
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
    """Return the resident memory of a process in bytes; 0 if it has ended."""
    fields = read_proc(f"{pid}/statm").split()
    return int(fields[RESIDENT]) * PAGE if fields else 0
