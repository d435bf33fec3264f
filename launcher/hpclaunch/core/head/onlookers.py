"""People who look at the job: what is kept for them, and asked of the agents while they look.

Nothing is decided from it.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from ..protocol.events import CheckpointChosen
from ..protocol.messages import Report
from .roster import Peer

if TYPE_CHECKING:
    from ..snapshot.job_snapshot import CheckpointSnapshot

LOOKS = 10.0  # seconds for which somebody counts as looking, after the last look
AGAIN = 1.5  # seconds between two requests for vitals
SEARCH = 10.0  # seconds from one search for the newest checkpoint to the next
STEPS_KEPT, STEPS_APART = 13, 5.0  # moments, and seconds between them: of the last minute


class Onlookers:
    def __init__(self) -> None:
        self._until = -math.inf
        self._asked_at = -math.inf
        self._number = 0  # of the vitals that were asked for last
        self._search_at = -math.inf
        self._search = 0  # the number of the search that is running; 0: none
        self._steps: deque[tuple[float, int]] = deque(maxlen=STEPS_KEPT)  # of rank 0's agent
        self._newest: tuple[float, CheckpointChosen] | None = None

    # What is asked of the agents

    def look(self, now: float) -> bool:
        """Somebody looks. Returns whether new vitals are wanted."""
        self._until = now + LOOKS
        if now < self._asked_at + AGAIN:
            return False
        self._asked_at = now
        self._number += 1
        return True

    def wanted(self, now: float) -> int:
        """The number of the vitals to tell; 0 while nobody looks."""
        return self._number if now < self._until else 0

    def wants_search(self, now: float) -> bool:
        """Return whether to look for the newest checkpoint: the caller calls `begin_search`."""
        return now >= self._search_at and not self.searching

    def begin_search(self, number: int, now: float) -> None:
        self._search_at, self._search = now + SEARCH, number

    @property
    def searching(self) -> bool:
        return self._search > 0

    def has_asked(self, number: int) -> bool:
        """Return whether this is the number of the search that is running."""
        return self.searching and number == self._search

    def search_failed(self) -> None:
        self._search = 0

    # What is kept

    def begin(self) -> None:
        """A round begins."""
        self._steps.clear()
        self._search = 0

    def hear(self, peer: Peer, report: Report, now: float) -> None:
        part, progress = peer.assignment, report.progress
        if progress is None or not progress.steps or part is None or part.first_rank:
            return
        if not self._steps or now >= self._steps[-1][0] + STEPS_APART:
            self._steps.append((now, max(progress.steps)))

    def chose(self, found: CheckpointChosen, now: float) -> None:
        self._search = 0
        self._newest = (now, found) if found.path else None

    # What is seen of it

    @property
    def pace(self) -> float | None:
        if len(self._steps) < 2:
            return None
        (since, first), (until, last) = self._steps[0], self._steps[-1]
        return (until - since) / (last - first) if last > first else None

    def checkpoint(self, now: float) -> CheckpointSnapshot | None:
        if self._newest is None:
            return None
        from ..snapshot.job_snapshot import CheckpointSnapshot

        at, found = self._newest
        age = None if found.age is None else found.age + now - at
        return CheckpointSnapshot(found.path, found.step, found.size, age)
