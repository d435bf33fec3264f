"""Rendezvous: the wait until every agent is ready for a round."""

from __future__ import annotations

from ...protocol.effects import Effect
from ...protocol.events import Diagnosed, Event
from ...protocol.stages import Stage
from .stage import JobStage, Step


class RendezvousStage(JobStage):
    kind = Stage.RENDEZVOUS

    def event(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, Diagnosed):
            return self.state.rendezvous.explain(event, now)
        return []

    def step(self, now: float, *, ticked: bool) -> Step:
        if (ended := self.end_without_round(now, ticked=ticked)) is not None:
            return ended
        ready, effects = self.state.can_begin_round(now)
        if not ready:
            return Step(effects + self.state.rendezvous.notice(now))
        self.state.rendezvous.complete()
        return Step(effects, Stage.CHOOSING)

    def _next_deadline(self) -> float:
        state = self.state
        return min(state.end.allocation.stop_at, state.rendezvous.next_deadline())
