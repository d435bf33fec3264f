"""Choosing: the wait until all agree on the checkpoint that the round resumes from."""

from __future__ import annotations

from ...placement.assigning import assign
from ...protocol.effects import Effect, Record
from ...protocol.events import CheckpointChosen, Event
from ...protocol.stages import Stage
from ..checkpoint_choice import CheckpointChoice
from ..head_state import HeadState
from ..orders import Asks
from ..roster import Peer
from ..round import Round
from ..round_beginnings import began
from ..seat_use import seats_of_agents
from ..takeover import next_unused_round
from .stage import JobStage, Step


class Choosing(JobStage):
    kind = Stage.CHOOSING

    def __init__(self, state: HeadState) -> None:
        super().__init__(state)
        self._choosing = CheckpointChoice(state.job, state.budget, state.numbers)

    def enter(self, now: float) -> list[Effect]:
        return super().enter(now) + self._choosing.begin(now)

    def event(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, CheckpointChosen) and self._choosing.chosen(event, now):
            self.state.end.notices.learn(event.took)
        return []

    def needs_search(self, number: int) -> bool:
        return self.state.end.verdict is None and number == self._choosing.search_number

    def asks(self, peer: Peer, now: float) -> Asks:
        return Asks(look=self._choosing.look(peer))

    def step(self, now: float, *, ticked: bool) -> Step:
        state, choosing = self.state, self._choosing
        if (ended := self.end_without_round(now, ticked=ticked)) is not None:
            return ended
        if state.rendezvous.is_short:
            return Step(next=Stage.RENDEZVOUS)
        if recorded := choosing.notice(now):
            return Step(recorded)
        if choosing.choice is None:
            return Step()
        # Are all still ready? If an agent's fork server was killed meanwhile, its store port is
        # dead until it reports a new one: workers would wait for a store that nobody has.
        ready, effects = state.can_begin_round(now)
        if not ready:
            return Step(effects)
        if not choosing.done:
            asked = choosing.asked
            considered = choosing.consider(state.next_participants, now)
            if considered is not None:
                again = self.order_all(now) if choosing.asked != asked else []
                return Step(effects + considered + again)
            if choosing.verdict is None and not choosing.done:
                return Step(effects)
        state.end.note(choosing.verdict or state.budget.begin(choosing.choice))
        if state.end.verdict is not None:
            ended = self.end(now)
            return Step([*effects, *ended.effects], ended.next)
        return Step([*effects, self._begin_round(choosing.as_of(now), now)], Stage.RUNNING)

    def _begin_round(self, checkpoint: CheckpointChosen, now: float) -> Effect:
        state = self.state
        state.round = max(state.round, next_unused_round(state.roster))
        last, groups = state.groups, state.next_groups()
        participants = state.next_participants()
        assigned = assign(
            state.job,
            {p.place.index: p.report for p in participants if p.report is not None},
            groups=groups,
            number=state.round,
            restarts=state.budget.total,
            checkpoint=checkpoint.path,
        )
        for peer in state.roster:
            peer.assignment = assigned.get(peer.place.index)
        seats = seats_of_agents(state.roster)
        state.current = Round(state.round, participants, groups, seats, now, checkpoint.path)
        state.begins += 1
        state.reconfigure(now)  # the order to run brings it to all who take part
        return Record(began(state, last, checkpoint))

    def _next_deadline(self) -> float:
        state = self.state
        choice_at = self._choosing.next_deadline(state.rendezvous.paused_until)
        return min(state.end.allocation.stop_at, choice_at)
