"""The time-outs while the workers of a round are being stopped."""

from __future__ import annotations

import math

from ..protocol.effects import Effect, KillIdleWorkers, KillWorkers
from ..protocol.model import Job


class Stopping:
    """What follows SIGTERM until all workers are gone: SIGKILL, and giving up after that. There is
    no deadline before `begin`.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._kill_idle_at = math.inf
        self._kill_at = math.inf
        self._unkillable_at = math.inf

    def next_deadline(self) -> float:
        return min(self._kill_idle_at, self._kill_at, self._unkillable_at)

    def begin(self, now: float, *, lost: bool) -> None:
        """SIGTERM was sent.

        `lost`: a worker has failed, so the others may be waiting for it in a collective, where
        their signal handlers cannot run. Then only workers that are doing something get the full
        grace period; idle ones are killed earlier.
        """
        self._kill_at = now + self.job.timing.grace
        if lost:
            self._kill_idle_at = now + self.job.timing.stuck

    def hurry(self, now: float) -> None:
        """End the grace period now. This changes nothing if SIGKILL was sent already."""
        self._kill_at = now if self._kill_at < math.inf else math.inf

    def end(self) -> None:
        """All workers are gone."""
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
        """Whether some workers have survived SIGKILL for too long. True only once."""
        if now < self._unkillable_at:
            return False
        self._unkillable_at = math.inf
        return True
