"""Ending: the wait until every agent has the verdict. Nothing happens after that."""

from __future__ import annotations

from ...protocol.effects import Effect, Record
from ...protocol.facts import JobEnded
from ...protocol.stages import Stage
from .stage import JobStage, Step


class Ending(JobStage):
    kind = Stage.ENDING

    def enter(self, now: float) -> list[Effect]:
        super().enter(now)
        state = self.state
        verdict = state.end.verdict
        assert verdict is not None, "a job ends with a verdict"
        unfit = {p.host: p.unfit for p in state.roster if p.unfit}
        fact = JobEnded(state.round, verdict.moved(-now), tuple(unfit.items()))
        return [Record(fact), *self.order_all(now)]

    def order_all(self, now: float) -> list[Effect]:
        # Lost agents are sent the verdict as well: some may be alive.
        return [self.order(p, now) for p in self.state.roster if p.report is not None]

    def step(self, now: float, *, ticked: bool) -> Step:
        left = self.state.roster.all_have_left(but_for=self._never_arrived(now))
        is_over = left or now >= self.next_deadline()
        return Step(next=Stage.ENDED if is_over else None)

    def _never_arrived(self, now: float) -> set[int]:
        """Return the agents that the job began without; none while they may still arrive."""
        state = self.state
        if not state.knows_rounds or now < state.tenure_since + state.timing.last_call:
            return set()
        return state.roster.absent - state.lease.configuration.agents

    def next_deadline(self) -> float:
        return self.since + self.state.timing.goodbye


class Ended(JobStage):
    kind = Stage.ENDED

    def step(self, now: float, *, ticked: bool) -> Step:
        return Step()
