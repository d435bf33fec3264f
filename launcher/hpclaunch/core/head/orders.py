"""The orders: each one contains everything that the head asks of one agent."""

from __future__ import annotations

import signal

from ..consensus.leader_lease import LeaderLease
from ..protocol.effects import Send
from ..protocol.messages import Order, Report
from ..protocol.model import Goal, Look, Query, StepNotice, Verdict
from ..protocol.values import value
from .roster import Peer


@value(frozen=True)
class Asks:
    """The questions in an order."""

    look: Look | None = None  # the checkpoint to look at
    queries: tuple[Query, ...] = ()  # to the workers
    notice: StepNotice | None = None  # to offer or to give


class Orders:
    def __init__(self, lease: LeaderLease, own: Peer) -> None:
        """`own`: the agent that leads."""
        self.lease = lease
        self._own = own
        self.term = lease.tenure
        self._serial = 0

    @property
    def start(self) -> str:
        """The incarnation of this head."""
        return "" if self._own.report is None else self._own.report.incarnation

    def dismissal(self, agent: int, report: Report) -> Send:
        """Return an order that ends an agent that belongs to an earlier start of this head."""
        self._serial += 1
        stop = Order(
            term=self.term,
            serial=self._serial,
            incarnation=report.incarnation,
            goal=Goal.STOP,
            round=report.round,
            tenure=self.lease.tenure,
            start=self.start,
        )
        return Send(agent, stop)

    def order(
        self,
        peer: Peer,
        goal: Goal,
        number: int,
        now: float,
        verdict: Verdict | None,
        asks: Asks,
        *,
        later: bool,
    ) -> Send:
        """Return the next order for an agent: `goal` for round `number`.

        `verdict`: how the job ends, for an END, or for a STOP after which no round follows.
        `later`: SIGTERM has announced an end that comes later.
        """
        report, presence = peer.report, peer.presence
        assert report is not None, "only an agent that was heard is sent orders"
        self._serial += 1
        if peer.is_lost and goal is not Goal.END:  # the others have continued without this agent
            goal, number, asks = Goal.STOP, report.round, Asks()
        needs = goal is Goal.RUN and report.round < number
        configuration = self.lease.configuration
        # Two heads may have written different configurations with one version number, so the term
        # counts as well. Of the agents that can lead, only voters are sent a configuration.
        has_it = report.version >= configuration.version and report.term >= self.lease.tenure
        has_none = not presence.has_configuration and peer.place.index in self.lease.rotation
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
            keep=self.lease.for_workers(presence, now),
            configuration=None if has_it or has_none else configuration,
            tenure=self.lease.tenure,
            look=asks.look,
            queries=asks.queries,
            notice=asks.notice,
            later=later and bool(report.warned),
            start=self.start,
        )
        presence.answered.send(self._serial, now)
        return Send(peer.place.index, order)
