"""A member and its head: whether it is there, and how long the workers may run without it."""

from __future__ import annotations

import math

from ..protocol.effects import Effect, KeepWorkers
from ..protocol.messages import Order
from ..protocol.model import Job
from . import contact


class LeaderLink:
    """Until the first order there are no deadlines and no leases."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.address = ""  # where the head was reached
        self.newest = -1  # serial of the newest order
        self.gone = False  # the head is proven dead
        self.released = False  # it has said that it leads no more
        self._kept = -math.inf  # until when the workers may run
        self._contact = contact.Contact()
        self._echo = contact.Echo()  # of the reports

    def hear(self, order: Order, address: str, now: float) -> bool:
        """Whether it is news: what is old says nothing about the head either."""
        if order.serial <= self.newest:
            return False
        self._contact.heard = now  # on a connection that may be closed by now
        self.address = address
        self.newest = order.serial
        return True

    @property
    def met(self) -> bool:
        return self._contact.heard is not None

    @property
    def closed(self) -> bool:
        return self._contact.closed is not None

    def lease(self, order: Order) -> list[Effect]:
        """See contact.py."""
        self._echo.hear(order.heard)
        until = -math.inf if self._echo.at is None else self._echo.at + order.keep
        if not order.keep or until <= self._kept:
            return []
        self._kept = until
        return [KeepWorkers(until)]

    def told(self, serial: int, now: float) -> None:
        """A report was sent."""
        self._echo.send(serial, now)

    def reopen(self) -> None:
        self._contact.reopen()

    def close(self, now: float) -> None:
        self._contact.close(now)

    def given_up_at(self) -> float:
        """Until then we follow no other; `inf` for one that was never heard."""
        if self.gone or self.released:
            return -math.inf
        return (
            math.inf
            if self._contact.heard is None
            else self._contact.heard + self.job.timing.vote_lease
        )

    def evidence(self, now: float) -> str:
        return contact.evidence(self._contact, self.gone, now)
