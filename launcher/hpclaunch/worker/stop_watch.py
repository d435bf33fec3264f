"""Recognizes processes beside this one that somebody has stopped (SIGSTOP).

It is pure: the caller finds out which processes are stopped now, and acts on what is returned.

A suspended job is no reason to act: all of its processes are stopped, but neither stop nor continue
at the same moment. So only time counts in which this process ran and saw the other one stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

PERIOD = 1.0  # seconds between two looks while one is stopped
LATE = 1.0  # seconds; a process that runs is not as late as this for a look


class StopWatch:
    """Call `look` when SIGCHLD has come, which says that a child was stopped, and at `due`."""

    def __init__(self, limit: float) -> None:
        """`limit` is for how many seconds a process may be stopped."""
        self._limit = limit
        self.due = math.inf
        self._since: dict[int, float] = {}  # pid -> when it was first seen stopped

    def look(self, stopped: Iterable[int], now: float) -> list[int]:
        """Take the pids of the processes that are stopped now; return those to act on."""
        if now >= self.due + LATE:  # this process was suspended, too
            self._since = {}
        self._since = {pid: self._since.get(pid, now) for pid in stopped}
        self.due = now + PERIOD if self._since else math.inf
        return [pid for pid, since in self._since.items() if now >= since + self._limit]
