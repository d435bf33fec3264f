"""Samples of how the workers keep pace: how fast they step, when they began their collectives, what
they used, and how far the other nodes are.

Most of it is the difference to the sample before. Whether a worker waits for storage is not counted
by every kernel, nor how fast its CPU runs; so each sample looks at them some times.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from .connections import connections_of
from .processes import LAST_CPU, NS, STATE, queued, stat, threads_of
from .progress_watch import ProgressWatch, cpu_of, tree

LOOKS, PAUSE = 10, 0.03  # how often a sample looks at the workers, and seconds in between
UNINTERRUPTIBLE = b"D"
# Bytes since the last sample: on other connections, delays are old, or nobody waits for them.
TRAFFIC = 1 << 16
# In kHz. Virtual machines do not tell.
CLOCK = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
# Where a cgroup tells for how long it was throttled: v2, and v1, by its line in /proc/PID/cgroup.
CPU_STATS = {
    "": "/sys/fs/cgroup{}/cpu.stat",
    "cpu": "/sys/fs/cgroup/cpu{}/cpu.stat",
    "cpu,cpuacct": "/sys/fs/cgroup/cpu,cpuacct{}/cpu.stat",
}


class Pace(TypedDict):
    """The share of the time since an earlier sample in which a worker did each of these."""

    pace: float  # how long a step took, in seconds; 0 if that is not known
    cpu: float
    queued: float
    throttled: float


class Taken(TypedDict):
    """A sample: the fields of fork_server_messages.Sample."""

    number: int
    ranks: list[dict[str, Any]]  # Arrivals; from the second sample on also Pace, and more
    ways: dict[str, float]


class Sampler:
    """Samples of the workers of one round after the other. Times are on the monotonic clock."""

    def __init__(self, progress: ProgressWatch) -> None:
        self.progress = progress
        self.number = 0  # of the sample that is being taken; 0: none
        self._next = math.inf
        self._looks = 0
        self._trees: dict[
            int, list[int]
        ] = {}  # rank -> its processes, at the beginning of this sample
        self._blocked: dict[int, int] = {}  # rank -> in how many looks it waited for storage
        self._clocks: dict[int, float] = {}  # rank -> the most of its CPU's in all looks
        self._before: dict[int, Used] = {}  # by rank, at the last sample
        self._bytes: dict[int, int] = {}  # inode of a connection -> bytes, at the last sample

    def begin(self) -> None:
        """A round begins."""
        self.cancel()
        self._before, self._bytes = {}, {}

    def cancel(self) -> None:
        self.number, self._next = 0, math.inf

    def due(self) -> float:
        """Return when `look` is to be called again."""
        return self._next

    def ask(self, number: int, pids: Mapping[int, int]) -> None:
        """Begin to take a sample."""
        self.number, self._next, self._looks = number, time.monotonic(), 0
        self._trees = {rank: tree(pid) for rank, pid in pids.items()}
        self._blocked = dict.fromkeys(pids, 0)
        self._clocks = dict.fromkeys(pids, 0.0)
        self.progress.ask_arrivals(pids)

    def look(self, pids: Mapping[int, int]) -> Taken | None:
        """Return the sample once it is done; `pids` are those of the living workers, by rank."""
        if not self.number or time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + PAUSE
        for rank, processes in self._trees.items():
            self._blocked[rank] += any(map(is_blocked, processes))
            self._clocks[rank] = max(self._clocks[rank], clock(processes[0]))
        self._looks += 1
        if self._looks < LOOKS:
            return None
        number = self.number
        self.cancel()
        self.progress.disregard()
        ranks = [self._told(rank, pid) for rank, pid in pids.items() if rank in self._trees]
        return {"number": number, "ranks": ranks, "ways": self._ways(pids.values())}

    def _ways(self, pids: Iterable[int]) -> dict[str, float]:
        """{address of another node: seconds there and back}, over connections with some traffic."""
        before, known = self._bytes, connections_of(pids)
        self._bytes = {inode: each.bytes for inode, each in known.items()}
        found: dict[str, float] = {}
        for inode, each in known.items():
            if each.peer and each.delay and each.bytes - before.get(inode, each.bytes) >= TRAFFIC:
                found[each.peer] = min(each.delay, found.get(each.peer, math.inf))
        return found

    def _told(self, rank: int, pid: int) -> dict[str, Any]:
        before = self._before.get(rank)
        now = Used(pid, self._trees[rank], *self.progress.steps_of(rank))
        self._before[rank] = now
        told: dict[str, Any] = {"rank": rank, **self.progress.arrivals_of(rank)}
        if before is not None and before.pid == pid:
            told |= now.since(before)
            told["blocked"] = self._blocked[rank] / LOOKS
            told["clock"] = self._clocks[rank]
        return told


class Used:
    """What a worker and the processes below it have done and used so far."""

    def __init__(self, pid: int, processes: Iterable[int], steps: int, stepped_at: float) -> None:
        self.pid = pid
        self.at = time.monotonic()
        self.steps, self.stepped_at = steps, stepped_at
        self.cpu = cpu_of(pid)
        # By thread, and by cgroup: seconds in which one could have run, and did not.
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
    """Of the times that have passed for each."""
    return max((now[key] - before[key] for key in now.keys() & before.keys()), default=0.0)


def queued_in(pid: int) -> dict[str, float]:
    """{thread: seconds for which it has waited for a CPU}"""
    waits = {thread: queued(f"{pid}/task/{thread}") for thread in threads_of(pid)}
    return {thread: seconds for thread, seconds in waits.items() if seconds is not None}


def throttled(pid: int) -> dict[str, float]:
    """{cgroup: seconds for which its CPU quota has stopped it}, of the process's and those above"""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as f:
            return throttled_in([line.rstrip("\n").split(":", 2) for line in f])
    except OSError:
        return {}  # it has ended


def throttled_in(cgroups: Iterable[Sequence[str]]) -> dict[str, float]:
    """`cgroups` are the three fields of each line in /proc/PID/cgroup."""
    found = {}
    for _, controllers, path in cgroups:
        while controllers in CPU_STATS and path:
            file = CPU_STATS[controllers].format(path.rstrip("/"))
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
    """Whether it waits for a disk or a driver."""
    fields = stat(pid)
    return bool(fields) and fields[STATE] == UNINTERRUPTIBLE


def clock(pid: int) -> float:
    """GHz of the CPU that it runs on, or has run on last; 0.0 if that is not known."""
    fields = stat(pid)
    try:
        with open(CLOCK.format(int(fields[LAST_CPU])), "rb") as f:
            return int(f.read()) / 1e6
    except (OSError, ValueError, IndexError):
        return 0.0
