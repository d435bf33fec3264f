"""Recognizes processes beside this one that somebody has stopped (SIGSTOP).

This is pure: the caller finds out which processes are stopped now, and acts on what is returned.

When a job is suspended, all of its processes are stopped, and continue later, but not at the same
moment. So only time counts in which this process ran and found the other one stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

STOPPED_LIMIT = 2.0  # seconds that a helper may be stopped: less than any wait for an answer
PERIOD = 1.0  # seconds between two looks while one is stopped
LATE = 1.0  # seconds; a look that is as late as this means that this process was suspended


class StopWatch:
    """A record of stopped processes.

    Call `look` after SIGCHLD, which reports a stopped child, and at `due`.
    """

    def __init__(self, limit: float) -> None:
        """Begin without stopped processes; each may stay stopped for `limit` seconds."""
        self._limit = limit
        self.due = math.inf
        self._since: dict[int, float] = {}  # pid -> when it was first seen stopped

    def look(self, stopped: Iterable[int], now: float) -> list[int]:
        """Return which of the processes that are stopped now have been so for too long."""
        if now >= self.due + LATE:  # this process was suspended, too
            self._since = {}
        self._since = {pid: self._since.get(pid, now) for pid in stopped}
        over = [pid for pid, since in self._since.items() if now >= since + self._limit]
        # A look for one process must not postpone the deadline of another.
        ends = (since + self._limit for since in self._since.values())
        next_end = min((end for end in ends if end > now), default=math.inf)
        self.due = min(now + PERIOD, next_end) if self._since else math.inf
        return over
