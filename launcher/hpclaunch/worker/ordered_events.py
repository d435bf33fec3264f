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
    """A queue of events, each of which waits for a flush."""

    def __init__(self, terminals: Terminals, report: Callable[[Event], None]) -> None:
        self._terminals = terminals
        self._report = report
        self._kept: collections.deque[tuple[float, Event]] = collections.deque()  # (limit, event)

    def add(self, event: Event, rank: int | None = None) -> None:
        """Send an event once all output of a rank (None: of every rank) is in files."""
        if self._terminals.flush(rank):
            self._kept.append((time.monotonic() + FLUSH_LIMIT, event))
        else:
            self._release(len(self._kept))
            self._report(event)

    def due(self) -> float:
        """Return when the next event is sent at the latest."""
        return self._kept[0][0] if self._kept else math.inf

    def send_due(self) -> None:
        """Send the events that have waited too long."""
        while time.monotonic() >= self.due():
            self._release(1)

    def hear_terminals(self) -> None:
        """Send the events that waited for a flush that is done."""
        done = self._terminals.flushed()
        if done is None:
            self._terminals.close()
        self._release(len(self._kept) if done is None else done)

    def _release(self, number: int) -> None:
        for _ in range(min(number, len(self._kept))):
            _, event = self._kept.popleft()
            self._report(event)
