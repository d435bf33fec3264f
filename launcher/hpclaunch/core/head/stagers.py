"""The stagers of a job that saves in the memory of several nodes. The head's one leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..placement.assigning import address_of
from ..protocol.effects import Effect, LeadStagers
from ..protocol.model import StagerPlace
from .roster import hosts_of

if TYPE_CHECKING:
    from .head_state import HeadState


class Stagers:
    def __init__(self, state: HeadState) -> None:
        self._state = state
        self._led: LeadStagers | None = None  # the last effect

    def lead(self) -> list[Effect]:
        """Lead the stagers that listen now, in the term of this head; [] if nothing has changed."""
        state = self._state
        if not state.job.stages_together:
            return []
        reports = {p.place.index: p.report for p in state.roster if p.report is not None}
        present = ((p.place.index, p.report) for p in state.roster.others)
        others = tuple(
            StagerPlace(
                index,
                report.host,
                address_of(index, state.job, reports),
                report.stager,
                report.head_address,
            )
            for index, report in present
            if report is not None and report.stager
        )
        leads = LeadStagers(state.orders.term, others)
        if leads == self._led:
            return []
        self._led = leads
        return [leads]

    # The next round

    @property
    def agents(self) -> tuple[int, ...]:
        """The agents that need the checkpoint in memory: of the next round, and the head's own. ()
        unless several nodes save there.
        """
        if not self._state.job.stages_together:
            return ()
        participants = {peer.place.index for peer in self._state.next_participants()}
        return tuple(sorted({*participants, self._state.me}))

    @property
    def can_stage(self) -> bool:
        """Whether all `agents` can save in memory."""
        reports = [self._state.roster[agent].report for agent in self.agents]
        return bool(reports) and all(report and not report.stage_refused for report in reports)

    @property
    def missing(self) -> tuple[str, ...]:
        """The hosts of those `agents` that have no stager and will have none. The head's own, as a
        spare, may also be starting.
        """
        peers = (self._state.roster[agent] for agent in self.agents)
        return hosts_of(
            p for p in peers if p.report is None or (p.report.stage_refused and not p.report.stager)
        )
