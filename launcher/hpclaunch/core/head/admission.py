"""Admission of agents without a part in the job: an agent without a place is given one, and an
agent of an earlier start is dismissed.
"""

from __future__ import annotations

from ..protocol.effects import Effect, Send
from ..protocol.messages import PlaceGiven, Report
from ..protocol.model import Phase
from .head_state import HeadState


class Admission:
    def __init__(self, state: HeadState) -> None:
        self.state = state
        self._places: dict[str, int] = {}  # the places that were given, by incarnation

    def answer(self, sender: int, report: Report, now: float) -> list[Effect] | None:
        """Answer a report; None if its agent has a part in the job."""
        if sender >= len(self.state.roster):
            return self._give_place(sender, report)
        return self._dismiss(sender, report, now) if self._is_of_before(report) else None

    def _give_place(self, sender: int, report: Report) -> list[Effect]:
        """Give the agent a place that nobody has had, if there is one. None is given in a pause, in
        which agents of an earlier start may still hold places.
        """
        places, roster = self._places, self.state.roster
        if report.incarnation not in places and not self.state.rendezvous.is_paused:
            free = roster.absent - {roster.me, *places.values()}
            places |= {report.incarnation: min(free)} if free else {}
        index = places.get(report.incarnation)
        return [] if index is None else [Send(sender, PlaceGiven(report.incarnation, index))]

    def _is_of_before(self, report: Report) -> bool:
        """Return whether an agent is of another launch, or of an earlier start of this head."""
        state = self.state
        if report.round < 0 or not state.knows_rounds:
            return report.round >= 0
        is_other = report.start not in ("", state.orders.start)
        return state.lease.is_of_ours(report.term) and is_other

    def _dismiss(self, sender: int, report: Report, now: float) -> list[Effect]:
        """Order the agent to end, unless it may belong to another head."""
        state = self.state
        if state.job.elects and not state.knows_rounds:
            return []
        if report.phase is not Phase.ENDED:
            state.rendezvous.pause(now + state.timing.killing)
        return [state.orders.dismissal(sender, report)]
