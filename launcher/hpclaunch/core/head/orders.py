"""The orders: each one contains everything that the head asks of one agent."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from ..protocol.effects import Send
from ..protocol.messages import Order, Report
from ..protocol.model import Goal, Look, Query, StepNotice
from ..protocol.values import value
from .roster import Peer

if TYPE_CHECKING:
    from .head_state import HeadState


@value(frozen=True)
class Asks:
    """The questions in an order."""

    look: Look | None = None  # the checkpoint to look at
    queries: tuple[Query, ...] = ()  # to the workers
    notice: StepNotice | None = None  # to offer or to give


class Orders:
    def __init__(self, state: HeadState) -> None:
        self._state = state
        self.term = state.lease.tenure
        self._serial = 0

    @property
    def start(self) -> str:
        """The incarnation of this head."""
        own = self._state.roster[self._state.me].report
        return "" if own is None else own.incarnation

    def dismissal(self, agent: int, report: Report) -> Send:
        """Return an order that ends an agent that belongs to an earlier start of this head."""
        self._serial += 1
        stop = Order(
            term=self.term,
            serial=self._serial,
            incarnation=report.incarnation,
            goal=Goal.STOP,
            round=report.round,
            tenure=self._state.lease.tenure,
            start=self.start,
        )
        return Send(agent, stop)

    def order(self, peer: Peer, goal: Goal, asks: Asks, now: float) -> Send:
        """Return the next order for an agent that was heard: `goal` for the current round."""
        report, presence = peer.report, peer.presence
        assert report is not None, "only an agent that was heard is sent orders"
        state, lease, verdict = self._state, self._state.lease, self._state.end.verdict
        number = state.round
        self._serial += 1
        if peer.is_lost and goal is not Goal.END:  # the others have continued without this agent
            goal, number, asks = Goal.STOP, report.round, Asks()
        needs = goal is Goal.RUN and report.round < number
        configuration = lease.configuration
        # Two heads may have written different configurations with one version number, so the term
        # counts as well. Of the agents that can lead, only voters are sent a configuration.
        has_it = report.version >= configuration.version and report.term >= lease.tenure
        has_none = not presence.has_configuration and peer.place.index in lease.rotation
        order = Order(
            term=self.term,
            serial=self._serial,
            incarnation=report.incarnation,
            goal=goal,
            round=number,
            assignment=peer.assignment if needs else None,
            verdict=verdict if goal is Goal.END else None,
            lost=goal is Goal.STOP and verdict is None,
            signum=signal.SIGTERM if verdict is None else verdict.signum,
            heard=report.serial,
            keep=lease.for_workers(presence, now),
            configuration=None if has_it or has_none else configuration,
            tenure=lease.tenure,
            look=asks.look,
            queries=asks.queries,
            notice=asks.notice,
            later=state.end.allocation.comes_later and bool(report.warned),
            start=self.start,
        )
        presence.answered.send(self._serial, now)
        return Send(peer.place.index, order)
