"""The end of the job: the verdict is made final; then follows Ending, the wait until every agent
has it. Nothing happens after that.
"""

from __future__ import annotations

from ...protocol.effects import Effect, Record
from ...protocol.facts import JobEnded
from ...protocol.stages import Stage
from ..round import IN_ROUND
from .stage import JobStage, Step


def end_job(stage: JobStage, now: float) -> Step:
    """Return the step that ends the job once the verdict is final."""
    state = stage.state
    asked = state.end.advance(now)
    if asked is not None:  # perhaps to copy what is in the memory of all nodes
        return Step([*state.stagers.lead(), *asked] if asked else [])
    facts = [Record(state.current_round.ended(now))] if stage.kind in IN_ROUND else []
    return Step(facts, Stage.ENDING)


def end_without_round(stage: JobStage, now: float, *, ticked: bool) -> Step | None:
    """Return the step that ends the job if there can be no further round; None if there can."""
    state = stage.state
    state.rendezvous.update(now, ticked=ticked)
    state.end.note(state.rendezvous.verdict(now))
    state.end.check(now)
    return None if state.end.verdict is None else end_job(stage, now)


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
