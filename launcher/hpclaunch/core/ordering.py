"""The head's side of the messages: what it tells each agent."""

from __future__ import annotations

from .authority import Authority
from .effects import Send
from .messages import Order
from .model import Goal, Look, Verdict
from .roster import Peer


class Ordering:
    def __init__(self, authority: Authority, term: int) -> None:
        self.authority = authority
        self.term = self._office = term
        self._serial = 0

    def order(
        self,
        peer: Peer,
        goal: Goal,
        number: int,
        verdict: Verdict | None,
        now: float,
        look: Look | None = None,
    ) -> Send:
        """`goal` for round `number`, with an END or a STOP for good the verdict, and with a WAIT
        the checkpoint to look at."""
        report = peer.report
        assert report is not None, "an agent is answered once it has been heard"
        self._serial += 1
        if peer.lost and goal is not Goal.END:
            goal, number = Goal.STOP, report.round  # its world has gone on without it
        needs = goal is Goal.RUN and report.round < number
        roll = self.authority.roll
        order = Order(
            term=self.term,
            serial=self._serial,
            incarnation=report.incarnation,
            goal=goal,
            round=number,
            assignment=peer.assignment if needs else None,
            verdict=verdict if goal is Goal.END else None,
            lost=goal is Goal.STOP and verdict is None,
            heard=report.serial,
            keep=self.authority.lease(peer, now),
            roll=roll if report.edition < roll.edition else None,
            office=self._office,
            look=look if goal is Goal.WAIT else None,
        )
        peer.echo.send(self._serial, now)
        return Send(peer.place.index, order)
