"""A follower and its head: whether the head is there, and what each has granted the other.

By answering an order the follower grants a **vote lease**: it follows no other head until the lease
is over. With the order the head grants a **worker lease**: see presence.py.
"""

from __future__ import annotations

import math
from typing import Protocol

from ..protocol.configuration import Configuration
from ..protocol.timing import Timing
from .contact import Acknowledged, Contact


class Heartbeat(Protocol):
    """What consensus has to know of a head's message."""

    @property
    def term(self) -> int: ...
    @property
    def tenure(self) -> int: ...
    @property
    def serial(self) -> int: ...
    @property
    def heard(self) -> int: ...
    @property
    def keep(self) -> float: ...
    @property
    def configuration(self) -> Configuration | None: ...


class LeaderLink:
    """Until the first message of the head there are no deadlines and no leases."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.address = ""  # where the head was reached
        self.newest = -1  # serial number of its newest message
        self.is_dead = False  # that is proven
        self.is_released = False  # it has said that it leads no more
        self._workers_until = -math.inf
        self._contact = Contact()
        self._answered = Acknowledged()  # of our reports

    def hear(self, beat: Heartbeat, address: str, now: float) -> bool:
        """Whether it is news: what is old says nothing about the head either."""
        if beat.serial <= self.newest:
            return False
        self._contact.heard = now  # on a connection that may be closed by now
        self.address = address
        self.newest = beat.serial
        return True

    @property
    def is_met(self) -> bool:
        return self._contact.heard is not None

    @property
    def is_closed(self) -> bool:
        return self._contact.closed is not None

    def lease(self, beat: Heartbeat) -> float | None:
        """Until when workers may run, if that is later than what was granted before."""
        self._answered.hear(beat.heard)
        until = -math.inf if self._answered.at is None else self._answered.at + beat.keep
        if not beat.keep or until <= self._workers_until:
            return None
        self._workers_until = until
        return until

    def told(self, serial: int, now: float) -> None:
        """A report was sent."""
        self._answered.send(serial, now)

    def reopen(self) -> None:
        self._contact.reopen()

    def close(self, now: float) -> None:
        self._contact.close(now)

    def free_at(self) -> float:
        """Until then we follow no other; `inf` for a head that was never heard."""
        if self.is_dead or self.is_released:
            return -math.inf
        heard = self._contact.heard
        return math.inf if heard is None else heard + self.timing.vote_lease

    def evidence(self, now: float) -> str:
        return self._contact.evidence(now, dead=self.is_dead)
