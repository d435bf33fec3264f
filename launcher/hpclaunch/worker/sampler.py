"""Samples of how the workers keep pace: how fast they step, when they began their collectives, what
they used, and how far the other nodes are.

Most of it is the difference to the sample before. Whether a worker waits for storage is not counted
by every kernel; so each sample looks at it some times.
"""

import contextlib
import math
import os
import time
from typing import Any

from .connections import sockets_of, tcp_connections
from .processes import STATE, stat
from .progress_watch import cpu_of, tree

LOOKS, PAUSE = 10, 0.03  # how often a sample looks at the workers, and seconds in between
UNINTERRUPTIBLE = b"D"
LATELY = 10_000  # milliseconds since something was sent: then it is known how long that takes
NS = 1e9
# Where a cgroup tells for how long it was throttled: v2, and v1, by its line in /proc/PID/cgroup.
CPU_STATS = {
    "": "/sys/fs/cgroup{}/cpu.stat",
    "cpu": "/sys/fs/cgroup/cpu{}/cpu.stat",
    "cpu,cpuacct": "/sys/fs/cgroup/cpu,cpuacct{}/cpu.stat",
}


class Sampler:
    """Of the workers of one round after the other. Times are on the monotonic clock."""

    def __init__(self, progress):
        self.progress = progress
        self.number = 0  # of the sample that is being taken; 0: none
        self._next = math.inf
        self._looks = 0
        self._blocked: Any = {}  # rank -> in how many looks it waited for storage
        self._before: Any = {}  # rank -> Used, at the last sample

    def begin(self):
        """A round begins."""
        self.cancel()
        self._before = {}

    def cancel(self):
        self.number, self._next = 0, math.inf

    def left(self):
        """Milliseconds for poll(), None without an end."""
        if not self.number:
            return None
        return max(0, math.ceil(1000 * (self._next - time.monotonic())))

    def ask(self, number, pids):
        """Begin to take a sample."""
        self.number, self._next, self._looks = number, time.monotonic(), 0
        self._blocked = dict.fromkeys(pids, 0)
        self.progress.ask_arrivals(pids)

    def look(self, pids):
        """What to tell once the sample is done; `pids` are those of the living workers, by rank."""
        if not self.number or time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + PAUSE
        for rank, pid in pids.items():
            self._blocked[rank] = self._blocked.get(rank, 0) + is_blocked(pid)
        self._looks += 1
        if self._looks < LOOKS:
            return None
        number = self.number
        self.cancel()
        self.progress.disregard()
        ranks = [self._told(rank, pid) for rank, pid in pids.items()]
        return {"number": number, "ranks": ranks, "ways": ways_of(pids.values())}

    def _told(self, rank, pid):
        before, now = self._before.get(rank), Used(pid, *self.progress.steps_of(rank))
        self._before[rank] = now
        told = {"rank": rank, "arrivals": self.progress.arrivals_of(rank)}
        if before is not None and before.pid == pid:
            told |= now.since(before)
            told["blocked"] = self._blocked[rank] / LOOKS
        return told


class Used:
    """What a worker and the processes below it have done and used so far."""

    def __init__(self, pid, steps, stepped_at):
        self.pid = pid
        self.at = time.monotonic()
        self.steps, self.stepped_at = steps, stepped_at
        self.cpu = cpu_of(pid)
        self.queued: Any = {}  # thread -> seconds in which it could have run, and did not
        for process in tree(pid):
            self.queued |= queued(process)
        self.throttled = throttled(pid)

    def since(self, before):
        """The share of the time since then in which it did each of these; and how long a step took,
        in seconds, 0 if there was none."""
        elapsed = max(1e-3, self.at - before.at)
        both = self.queued.keys() & before.queued.keys()
        waits = [self.queued[thread] - before.queued[thread] for thread in both]
        steps = self.steps - before.steps
        return {
            "pace": (self.stepped_at - before.stepped_at) / steps if steps > 0 else 0.0,
            "cpu": max(0.0, self.cpu - before.cpu) / elapsed,
            "queued": max(waits, default=0.0) / elapsed,
            "throttled": max(0.0, self.throttled - before.throttled) / elapsed,
        }


def queued(pid):
    """{thread: seconds for which it has waited for a CPU}"""
    try:
        waits = {thread: _waited(pid, thread) for thread in os.listdir(f"/proc/{pid}/task")}
    except OSError:
        return {}  # it has ended
    return {thread: seconds for thread, seconds in waits.items() if seconds is not None}


def _waited(pid, thread):
    try:
        with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as f:
            return int(f.read().split()[1]) / NS
    except (OSError, ValueError, IndexError):
        return None  # it has just ended, or this kernel does not count


def throttled(pid):
    """For how many seconds the CPU quota of its cgroup has stopped it."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as f:
            return throttled_in([line.rstrip("\n").split(":", 2) for line in f])
    except OSError:
        return 0.0  # it has ended


def throttled_in(cgroups):
    """`cgroups` are the three fields of each line in /proc/PID/cgroup."""
    for _, controllers, path in cgroups:
        fields = fields_of(CPU_STATS[controllers].format(path)) if controllers in CPU_STATS else {}
        if b"throttled_usec" in fields:
            return int(fields[b"throttled_usec"]) / 1e6
        if b"throttled_time" in fields:
            return int(fields[b"throttled_time"]) / NS
    return 0.0


def fields_of(path):
    try:
        with open(path, "rb") as f:
            return dict(line.split() for line in f)
    except (OSError, ValueError):
        return {}  # it is mounted elsewhere


def is_blocked(pid):
    """Whether it, or a process below it, waits for a disk or a driver."""
    states = (stat(process) for process in tree(pid))
    return any(fields and fields[STATE] == UNINTERRUPTIBLE for fields in states)


def ways_of(pids):
    """{address of another node: seconds there and back}, over connections that these use now."""
    known = tcp_connections() or {}
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            inodes |= sockets_of(pid)
    found: Any = {}
    for inode in inodes & known.keys():
        each = known[inode]
        if each.peer and each.delay and each.sent < LATELY:
            found[each.peer] = min(each.delay, found.get(each.peer, math.inf))
    return found
