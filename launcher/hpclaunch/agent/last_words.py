"""The last lines of workers that have ended. The log service reads them, which may take a while.

The events of a worker's end carry its last lines, and all later events wait for these. If the file
system hangs, the events are sent without the lines.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from ..core.protocol import events
from ..core.protocol.values import value
from ..system.logs import messages
from .adapter import Adapter
from .logs import Logs

LIMIT = 3.0  # seconds; longer than a log service stays stopped

Make = Callable[[str], Iterable[events.Event]]  # makes the events from the last lines


@value()
class _Delayed:
    """Events that wait for last lines, or for earlier events."""

    make: Make
    is_awaiting: bool  # the lines are not read yet
    until: float  # when to continue without them
    text: str = ""


class LastWords(Adapter):
    """Delays the events of a worker's end until its last lines are read, and keeps their order."""

    limits_helper: ClassVar[bool] = True

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._queue: deque[_Delayed] = deque()

    def deadline(self) -> float:
        return min((each.until for each in self._queue if each.is_awaiting), default=math.inf)

    def add(self, make: Make, files: Sequence[Path] = ()) -> list[events.Event]:
        """Append the events that `make` returns for the last lines of these files. Return the
        events that can be delivered now.
        """
        delayed = _Delayed(make, bool(files), time.monotonic() + LIMIT)
        self._queue.append(delayed)
        if files:
            question = messages.ReadTail(tuple(map(str, files)))
            self._logs.ask(question, partial(self._on_tail, delayed))
        return self._take()

    def _on_tail(self, delayed: _Delayed, reply: messages.Reply | None) -> list[events.Event]:
        delayed.is_awaiting = False
        delayed.text = reply.text if isinstance(reply, messages.Tail) else ""
        return self._take()

    def update(self, now: float) -> list[events.Event]:
        for each in self._queue:
            each.is_awaiting = each.is_awaiting and now < each.until
        return self._take()

    def _take(self) -> list[events.Event]:
        found: list[events.Event] = []
        while self._queue and not self._queue[0].is_awaiting:
            first = self._queue.popleft()
            found += first.make(first.text)
        return found
