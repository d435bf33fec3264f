"""The suspicion that the workers of an agent hang.

They are suspected if none of them has made a step, or shown any sign of life but CPU time, for much
longer than a step takes. Workers that wait for those of another agent look the same.
"""

from __future__ import annotations

import math
from collections import deque

from ..protocol.events import WorkersSeen
from ..protocol.model import Progress
from ..protocol.timing import LEARNED, Timing

TIMES = 5  # the limit, in multiples of the longest recent step
LEARNED_AFTER = 5  # steps
PATIENCE = 10  # multiples of the limit, for activities that may take much longer than a step
RECENT = 64  # remembered gaps between steps, the longest of each report


class Suspicion:
    """The suspicion that an agent's workers hang, in one round."""

    def __init__(self, timing: Timing, *, trained: bool = False) -> None:
        """`trained`: whether workers of an earlier round made steps."""
        self._timing = timing
        self.trained = trained
        self._seen: WorkersSeen | None = None
        self._gaps: deque[float] = deque(maxlen=RECENT)
        self._save = 0.0

    def saw(self, event: WorkersSeen) -> None:
        if event.gap:
            self._gaps.append(event.gap)
        if self._seen is not None and min(event.steps) < min(self._seen.steps):
            self._gaps.clear()  # another program has begun
        self.trained |= event.trains
        self._save = max(self._save, event.save)
        self._seen = event

    def report(self) -> Progress | None:
        seen = self._seen
        if seen is None:
            return None
        usual = max(self._gaps, default=0.0)
        own = self._limit(seen, usual)
        limit = PATIENCE * own if seen.patient else own
        longest = PATIENCE * max(own, min(limit, self._timing.early_hang))
        return Progress(
            steps=(seen.steps[0],) if len(set(seen.steps)) == 1 else seen.steps,
            still=round(seen.still, 1),
            busy=seen.busy,
            limit=math.ceil(limit),
            longest=math.ceil(longest),
            usual=round(usual, 3),
            save=round(self._save, 3),
        )

    @property
    def awaited(self) -> tuple[float, ...]:
        """The times without a sign of life, in seconds, at which the head must get a report."""
        progress = self.report()
        return (progress.limit, progress.longest) if progress and progress.limit else ()

    def forget(self) -> None:
        """Discard what was seen: the workers have ended, or the fork server holds them."""
        self._seen = None

    def _limit(self, seen: WorkersSeen, usual: float) -> float:
        """Return the limit for activities that take no longer than a step; 0 if there is none."""
        timing = self._timing
        if seen.traced or not timing.hang:
            return 0.0
        if timing.hang != LEARNED:
            return timing.hang
        if not (seen.trains or seen.meets or (self.trained and not any(seen.steps))):
            return 0.0  # perhaps a server, which waits for requests
        if min(seen.steps) < LEARNED_AFTER:
            return timing.early_hang
        return max(timing.least_hang, TIMES * usual)
