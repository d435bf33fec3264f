"""A member and its head: whether it is there, and how long the workers may run without it."""

from __future__ import annotations

from . import membership
from .effects import Effect, KeepWorkers
from .messages import Order
from .model import EXIT_LOST, HEAD, Job, Verdict

DYING = 0.25  # seconds that killed workers may take to be gone


class Bond:
    """Until `begin`, as for the head itself, there are no deadlines and no leases."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.address = ""  # where the head was reached
        self.newest = (-1, -1)  # term and serial of the newest order obeyed
        self._contact = membership.Contact()
        self._echo = membership.Echo()  # of the reports

    def hear(self, order: Order, address: str, now: float) -> bool:
        """Whether it is news."""
        self._contact.hear(now)
        self.address = address
        if (order.term, order.serial) <= self.newest:
            return False
        self.newest = (order.term, order.serial)
        return True

    def lease(self, order: Order) -> list[Effect]:
        """See membership.py."""
        if not self._echo.hear(order.heard) or self._echo.at is None:
            return []
        return [KeepWorkers(self._echo.at + self.job.silence - DYING)]

    def told(self, serial: int, now: float) -> None:
        """A report was sent."""
        self._echo.send(serial, now)

    def reopen(self) -> None:
        self._contact.reopen()

    def close(self, now: float) -> None:
        self._contact.close(now)

    def given_up_at(self) -> float:
        """A head that was only cut off may come back; one that has closed its connection is gone.
        `inf` for one that was never heard.
        """
        lost = membership.lost_at(self._contact, self.job)
        return lost if self._contact.closed is not None else lost + self.job.wait

    def verdict(self, now: float) -> Verdict:
        why = membership.evidence(self._contact, now)
        return Verdict(EXIT_LOST, f"the head on {self.job.places[HEAD].host} was lost: {why}")
