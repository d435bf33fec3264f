"""What workers wrote before they ended: it is read elsewhere, and may take a while.

How a worker ended is told with its last lines, and all that comes after that waits for it. A file
system that hangs costs the lines, not the news.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

from ..core.protocol import events
from ..core.protocol.values import value

LIMIT = 3.0  # seconds; longer than a log service stays stopped

Make = Callable[[str], Iterable[events.Event]]  # the events, of the last lines


@value()
class _News:
    make: Make
    number: int  # of the request for the lines; 0 if nothing is awaited
    until: float  # when to go on without
    text: str = ""


class LastWords:
    """News in the order in which they came."""

    def __init__(self) -> None:
        self._news: deque[_News] = deque()

    def next_deadline(self) -> float:
        return min((news.until for news in self._news if news.number), default=math.inf)

    def add(self, make: Make, *, number: int = 0, now: float = 0.0) -> list[events.Event]:
        """With a number, the answer to that request is awaited. Returns the events to deliver."""
        self._news.append(_News(make, number, now + LIMIT))
        return self._take()

    def receive(self, number: int, text: str) -> list[events.Event]:
        for news in self._news:
            if news.number == number:
                news.number, news.text = 0, text
        return self._take()

    def expire(self, now: float) -> list[events.Event]:
        for news in self._news:
            if now >= news.until:
                news.number = 0
        return self._take()

    def _take(self) -> list[events.Event]:
        found: list[events.Event] = []
        while self._news and not self._news[0].number:
            news = self._news.popleft()
            found += news.make(news.text)
        return found
