"""Samples of how the workers keep pace: how fast they step, when they began their collectives, what
they used, and how long packets take to other nodes.

Most figures are differences to the sample before. Not every kernel counts how long a process waits
for storage, or how fast its CPU runs, so each sample looks at these several times.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .fork_server_messages import Pace, RankSample
from .processes import LAST_CPU, NS, STATE, queued, read_proc, stat, threads_of
from .progress_watch import ProgressWatch
from .sock_diag import connections_of
from .worker_processes import tree, work_of

LOOKS, PAUSE = 10, 0.03  # how often a sample looks at the workers, and seconds in between
UNINTERRUPTIBLE = b"D"
# Bytes since the last sample. On a connection with fewer, the delay is old, or nobody waits for it.
TRAFFIC = 1 << 16
# In kHz. Virtual machines have no such file.
CLOCK = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
CGROUPS = "/sys/fs/cgroup"


class Sampler:
    """Samples of workers, by differences to the last one. Times are on the monotonic clock."""

    def __init__(self, progress: ProgressWatch) -> None:
        self.progress = progress
        self._before: dict[int, Used] = {}  # by rank, at the last sample
        self._bytes: dict[int, int] = {}  # inode of a connection -> bytes, at the last sample

    def begin(self) -> None:
        """Begin a round."""
        self._before, self._bytes = {}, {}

    def take(self, living: Callable[[], Mapping[int, int]]) -> Iterator[float | dict[str, Any]]:
        """Take a sample. Yield how many seconds to wait before each of its looks, and at last the
        sample; `living` returns the pids of the living workers, by rank."""
        pids = living()
        trees = {rank: tree(pid) for rank, pid in pids.items()}
        blocked = dict.fromkeys(trees, 0)  # in how many looks it waited for storage
        clocks = dict.fromkeys(trees, 0.0)  # the highest clock of its CPU in all looks
        self.progress.ask_arrivals(pids)
        for look in range(LOOKS):
            if look:
                yield PAUSE
            for rank, processes in trees.items():
                blocked[rank] += any(map(is_blocked, processes))
                clocks[rank] = max(clocks[rank], clock(processes[0]))
        self.progress.disregard()
        pids = living()
        ranks: list[RankSample] = []
        for rank, pid in pids.items():
            if rank not in trees:
                continue
            pace = self._pace(rank, pid, trees[rank])
            if pace:
                pace["blocked"], pace["clock"] = blocked[rank] / LOOKS, clocks[rank]
            ranks.append({"rank": rank, **self.progress.arrivals_of(rank), **pace})
        yield {"ranks": ranks, "ways": self._ways(pids.values())}

    def _pace(self, rank: int, pid: int, processes: Iterable[int]) -> Pace:
        """Return what a worker has done since the last sample; {} if it was not there then."""
        before = self._before.get(rank)
        now = self._before[rank] = Used(pid, processes, *self.progress.steps_of(rank))
        return now.since(before) if before is not None and before.pid == pid else {}

    def _ways(self, pids: Iterable[int]) -> dict[str, float]:
        """Return {address of another node: seconds there and back} of connections with traffic."""
        before, known = self._bytes, connections_of(pids)
        self._bytes = {inode: each.bytes for inode, each in known.items()}
        found: dict[str, float] = {}
        for inode, each in known.items():
            if each.peer and each.delay and each.bytes - before.get(inode, each.bytes) >= TRAFFIC:
                found[each.peer] = min(each.delay, found.get(each.peer, math.inf))
        return found


class Used:
    """The work of a worker and the processes below it, and the resources used so far."""

    def __init__(self, pid: int, processes: Iterable[int], steps: int, stepped_at: float) -> None:
        self.pid = pid
        self.at = time.monotonic()
        self.steps, self.stepped_at = steps, stepped_at
        self.cpu = sum(each.cpu for each in work_of(pid).values())
        # By thread, and by cgroup: seconds in which it could have run, and did not.
        self.queued: dict[str, float] = {}
        for process in processes:
            self.queued |= queued_in(process)
        self.throttled = throttled(pid)

    def since(self, before: Used) -> Pace:
        elapsed = max(1e-3, self.at - before.at)
        steps = self.steps - before.steps if before.steps else 0
        return {
            "pace": (self.stepped_at - before.stepped_at) / steps if steps > 0 else 0.0,
            "cpu": max(0.0, self.cpu - before.cpu) / elapsed,
            "queued": longest(before.queued, self.queued) / elapsed,
            "throttled": longest(before.throttled, self.throttled) / elapsed,
        }


def longest(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    """Return the largest increase of a time that is in both."""
    return max((now[key] - before[key] for key in now.keys() & before.keys()), default=0.0)


def queued_in(pid: int) -> dict[str, float]:
    """Return {thread: seconds for which it has waited for a CPU}."""
    waits = {thread: queued(f"{pid}/task/{thread}") for thread in threads_of(pid)}
    return {thread: seconds for thread, seconds in waits.items() if seconds is not None}


def throttled(pid: int) -> dict[str, float]:
    """Return {cgroup: seconds for which its CPU quota has stopped it}, for the cgroup of a process
    and those above."""
    lines = os.fsdecode(read_proc(f"{pid}/cgroup")).split("\n")
    return throttled_in(line.split(":", 2) for line in lines if line)


def throttled_in(cgroups: Iterable[Sequence[str]]) -> dict[str, float]:
    """Return what `throttled` does; `cgroups` has the three fields of each line of the file."""
    found = {}
    for _, controllers, path in cgroups:
        if controllers and "cpu" not in controllers.split(","):
            continue
        # In v1, "cpu" is a link to where several controllers are mounted together, in any order.
        root = f"{CGROUPS}/cpu" if controllers else CGROUPS
        while path:
            file = f"{root}{path.rstrip('/')}/cpu.stat"
            fields = fields_of(file)
            if b"throttled_usec" in fields:
                found[file] = int(fields[b"throttled_usec"]) / 1e6
            if b"throttled_time" in fields:
                found[file] = int(fields[b"throttled_time"]) / NS
            path = path.rpartition("/")[0]
    return found


def fields_of(path: str) -> dict[bytes, bytes]:
    try:
        with open(path, "rb") as f:
            return dict(line.split(maxsplit=1) for line in f)
    except (OSError, ValueError):
        return {}  # it is mounted elsewhere


def is_blocked(pid: int) -> bool:
    """Return whether a process waits for a disk or a driver."""
    fields = stat(pid)
    return bool(fields) and fields[STATE] == UNINTERRUPTIBLE


def clock(pid: int) -> float:
    """Return the GHz of the CPU on which a process runs, or has run last; 0.0 if not known."""
    fields = stat(pid)
    try:
        with open(CLOCK.format(int(fields[LAST_CPU])), "rb") as f:
            return int(f.read()) / 1e6
    except (OSError, ValueError, IndexError):
        return 0.0
