"""Viewers of the job, and what the agents report only while somebody looks at it."""

from __future__ import annotations

import math

LOOKS = 10.0  # seconds for which somebody counts as looking, after the last look
AGAIN = 1.5  # seconds between two requests for vitals


class Viewers:
    def __init__(self) -> None:
        self._until = -math.inf
        self._asked_at = -math.inf
        self._number = 0  # of the vitals that were asked for last

    def look(self, now: float) -> bool:
        """Note that somebody looks, and return whether to ask for new vitals."""
        self._until = now + LOOKS
        if now < self._asked_at + AGAIN:
            return False
        self._asked_at = now
        self._number += 1
        return True

    def vitals(self, now: float) -> int:
        """Return the number of the vitals to report; 0 while nobody looks."""
        return self._number if now < self._until else 0
