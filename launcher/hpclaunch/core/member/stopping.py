"""Ending the workers of a round: which step comes when."""

from __future__ import annotations

import math

from ..protocol.effects import Effect, KillIdleWorkers, KillWorkers
from ..protocol.model import Job


class Stopping:
    """SIGTERM was sent; what follows it until all are gone. No deadline before `begin`."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._kill_idle_at = math.inf
        self._kill_at = math.inf
        self._unkillable_at = math.inf

    def next_deadline(self) -> float:
        return min(self._kill_idle_at, self._kill_at, self._unkillable_at)

    def begin(self, now: float, *, lost: bool) -> None:
        """`lost`: a worker has failed. Its peers may wait for it inside of a collective, where no
        handler of theirs is run: only those that do save something have all of the grace."""
        self._kill_at = now + self.job.timing.grace
        if lost:
            self._kill_idle_at = now + self.job.timing.stuck

    def hurry(self, now: float) -> None:
        """No more grace. Once the kill is out, there is nothing to hasten."""
        self._kill_at = now if self._kill_at < math.inf else math.inf

    def over(self) -> None:
        self._kill_idle_at = self._kill_at = self._unkillable_at = math.inf

    def due(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if now >= self._kill_at:
            self._kill_at = self._kill_idle_at = math.inf
            self._unkillable_at = now + self.job.timing.unkillable
            effects.append(KillWorkers())
        if now >= self._kill_idle_at:
            self._kill_idle_at = now + self.job.timing.stuck
            effects.append(KillIdleWorkers())
        return effects

    def given_up(self, now: float) -> bool:
        """Some survive SIGKILL; told once."""
        if now < self._unkillable_at:
            return False
        self._unkillable_at = math.inf
        return True
