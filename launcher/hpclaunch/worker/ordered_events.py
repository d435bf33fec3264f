"""Events that must not arrive before the output that was written before them.

Another process (`terminals.py`) copies what a worker writes to a terminal or a pipe to the worker's
file. The agent reads the file when a worker has ended.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable

from .fork_server_messages import Event
from .terminals import Terminals

FLUSH_LIMIT = 5.0  # seconds that an event waits for output to be in files


class OrderedEvents:
    """A queue of events, each of which waits for a flush. Flushes are done in their order."""

    def __init__(self, terminals: Terminals, report: Callable[[Event], None]) -> None:
        self._terminals = terminals
        self._report = report
        self._asked = self._done = 0  # how many flushes were asked for, and are done
        # (limit, number of the flush, event)
        self._kept: collections.deque[tuple[float, int, Event]] = collections.deque()

    def add(self, event: Event, rank: int | None = None) -> None:
        """Send an event once all output of a rank (None: of every rank) is in files."""
        if self._terminals.flush(rank):
            self._asked += 1
            self._kept.append((time.monotonic() + FLUSH_LIMIT, self._asked, event))
        else:
            self._flushed(self._asked)
            self._report(event)

    def due(self) -> float:
        """Return when the next event is sent at the latest."""
        return self._kept[0][0] if self._kept else math.inf

    def send_due(self) -> None:
        """Send the events that have waited too long."""
        while time.monotonic() >= self.due():
            self._report(self._kept.popleft()[-1])

    def hear_terminals(self) -> None:
        """Send the events that waited for a flush that is done."""
        done = self._terminals.flushed()
        if done is None:
            self._terminals.close()
        self._flushed(self._asked if done is None else self._done + done)

    def _flushed(self, done: int) -> None:
        """Send the events that waited for one of the first `done` flushes."""
        self._done = min(done, self._asked)  # a copier that is gone has left some undone
        while self._kept and self._kept[0][1] <= self._done:
            self._report(self._kept.popleft()[-1])
