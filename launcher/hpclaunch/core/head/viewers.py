"""Viewers of the job, and what the agents report only while somebody looks at it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..protocol.model import Query, QueryKind

LOOKS = 10.0  # seconds for which somebody counts as looking after each look
AGAIN = 1.5  # seconds between two requests for vitals


class Viewers:
    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._until = -math.inf
        self._asked_at = -math.inf
        self._query: Query | None = None  # the last one

    def look(self, now: float) -> bool:
        """Note that somebody looks, and return whether to ask for new vitals."""
        self._until = now + LOOKS
        if now < self._asked_at + AGAIN:
            return False
        self._asked_at = now
        self._query = Query(QueryKind.VITALS, next(self._numbers))
        return True

    def query(self, now: float) -> Query | None:
        """Return the query for vitals; None while nobody looks."""
        return self._query if now < self._until else None
