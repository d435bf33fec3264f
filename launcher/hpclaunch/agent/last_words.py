"""What workers wrote before they ended: it is read elsewhere, and may take a while.

How a worker ended is told with its last lines, and all that comes after that waits for it. A file
system that hangs costs the lines, not the news.
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

Make = Callable[[str], Iterable[events.Event]]  # the events, of the last lines


@value()
class _News:
    make: Make
    is_awaiting: bool  # the lines
    until: float  # when to go on without
    text: str = ""


class LastWords(Adapter):
    """News in the order in which they came."""

    limits_helper: ClassVar[bool] = True

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._news: deque[_News] = deque()

    def deadline(self) -> float:
        return min((news.until for news in self._news if news.is_awaiting), default=math.inf)

    def add(self, make: Make, files: Sequence[Path] = ()) -> list[events.Event]:
        """Append news, which `make` makes of the last lines of these files once they are read.
        Return the events to deliver.
        """
        news = _News(make, bool(files), time.monotonic() + LIMIT)
        self._news.append(news)
        if files:
            question = partial(messages.ReadTail, files=tuple(map(str, files)))
            self._logs.ask(question, partial(self._on_tail, news))
        return self._take()

    def _on_tail(self, news: _News, reply: messages.Reply | None) -> list[events.Event]:
        news.is_awaiting = False
        news.text = reply.text if isinstance(reply, messages.Tail) else ""
        return self._take()

    def update(self, now: float) -> list[events.Event]:
        for news in self._news:
            if now >= news.until:
                news.is_awaiting = False
        return self._take()

    def _take(self) -> list[events.Event]:
        found: list[events.Event] = []
        while self._news and not self._news[0].is_awaiting:
            news = self._news.popleft()
            found += news.make(news.text)
        return found
