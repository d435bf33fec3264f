"""The time-outs for the workers of a round that are being stopped, and for their leftovers."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence

from ..protocol.effects import Effect, KillIdleWorkers, KillWorkers, Record, SignalLeftovers
from ..protocol.facts import LeftoversFound, LeftoverStep
from ..protocol.model import Job, Leftover


class Stopping:
    """The steps from the signal that stops the workers until nothing of the round is left: SIGKILL,
    and finally giving up. There is no deadline before `begin` or `leave_behind`.
    """

    def __init__(self, job: Job, host: str) -> None:
        self.job = job
        self.host = host
        self.end()

    def end(self) -> None:
        """Clear everything: the workers, and the processes that they have started, are gone."""
        self.is_lost = False  # see `begin`
        self.has_killed = False  # workers may have got SIGKILL
        self._kill_idle_at = math.inf
        self._kill_at = math.inf
        self._leftovers: Sequence[Leftover] = ()  # () as long as a worker lives
        self._name_leftovers_at = math.inf
        self._end_leftovers_at = math.inf
        self._kill_leftovers_at = math.inf
        self._unkillable_at = math.inf

    def next_deadline(self) -> float:
        workers = min(self._kill_idle_at, self._kill_at, self._unkillable_at)
        leftovers = min(self._name_leftovers_at, self._end_leftovers_at, self._kill_leftovers_at)
        return min(workers, leftovers)

    def begin(self, now: float, *, lost: bool) -> None:
        """Start the grace period: the workers were sent a signal.

        `lost`: workers may wait in a collective for others that are gone, where their signal
        handlers cannot run. Then only workers that are doing something get the full grace period;
        idle ones are killed earlier.
        """
        self.is_lost = lost
        if self._leftovers:
            self._kill_leftovers_soon(now)
            return
        self._kill_at = now + self.job.timing.grace
        if lost:
            self._kill_idle_at = now + self.job.timing.stuck

    def leave_behind(self, leftovers: Sequence[Leftover], now: float, *, stopped: bool) -> None:
        """Note which processes still run, now that all workers have ended.

        If the workers ended by themselves, a leftover may be an upload: it gets a grace period.
        """
        is_first, self._leftovers = not self._leftovers, leftovers
        if is_first and stopped:
            self._unkillable_at = math.inf  # it was set if the workers got SIGKILL
            self._kill_leftovers_soon(now)
        elif is_first:
            self._name_leftovers_at = now + self.job.timing.leftovers_notice
            self._end_leftovers_at = now + self.job.timing.grace

    def _kill_leftovers_soon(self, now: float) -> None:
        self._kill_at = self._kill_idle_at = math.inf
        self._name_leftovers_at = self._end_leftovers_at = math.inf
        self._kill_leftovers_at = now + self.job.timing.leftovers

    def hurry(self, now: float) -> None:
        """End the grace period now. This changes nothing if SIGKILL was sent already."""
        self.has_killed = True
        self._kill_at = now if self._kill_at < math.inf else math.inf
        self._kill_leftovers_at = now if self._kill_leftovers_at < math.inf else math.inf

    def due(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if now >= self._kill_at:
            self._kill_at = self._kill_idle_at = math.inf
            self._unkillable_at = now + self.job.timing.unkillable
            effects.append(KillWorkers())
        if now >= self._kill_idle_at:
            self._kill_idle_at = now + self.job.timing.stuck
            effects.append(KillIdleWorkers())
        self.has_killed |= bool(effects)
        if now >= self._name_leftovers_at:
            self._name_leftovers_at = math.inf
            effects.append(self._found(LeftoverStep.WAIT))
        if now >= self._end_leftovers_at:
            self._kill_leftovers_soon(now)
            effects.append(self._found(LeftoverStep.END))
            effects.append(SignalLeftovers(signal.SIGTERM))
        if now >= self._kill_leftovers_at:
            self._kill_leftovers_at = math.inf
            self._unkillable_at = now + self.job.timing.unkillable
            effects.append(self._found(LeftoverStep.KILL))
            effects.append(SignalLeftovers(signal.SIGKILL))
        return effects

    def given_up(self, now: float) -> str:
        """Return which processes have survived SIGKILL for too long, in words; "" if none have.
        They are named only once.
        """
        if now < self._unkillable_at:
            return ""
        self._unkillable_at = math.inf
        survivors = "processes that the workers left behind" if self._leftovers else "workers"
        waited = f"{self.job.timing.unkillable:.0f} s"
        return f"{survivors} survive SIGKILL for {waited} (a hung file system or driver?)"

    def _found(self, step: LeftoverStep) -> Record:
        grace = self.job.timing.grace
        return Record(LeftoversFound(self.host, step, grace, tuple(self._leftovers)))
