"""The link of a follower to its head: when the head was heard, and the leases between the two.

By answering an order, the follower grants the head a **vote lease**: it follows no other head until
the lease is over. With each order, the head grants a **worker lease**: see presence.py.
"""

from __future__ import annotations

import math
from typing import Protocol

from ..protocol.configuration import Configuration
from ..protocol.losses import Loss
from ..protocol.timing import Timing
from .contact import Acknowledged, Contact


class Heartbeat(Protocol):
    """The fields of a head's message that consensus reads."""

    @property
    def term(self) -> int: ...
    @property
    def tenure(self) -> int: ...
    @property
    def start(self) -> str: ...
    @property
    def serial(self) -> int: ...
    @property
    def heard(self) -> int: ...
    @property
    def keep(self) -> float: ...
    @property
    def configuration(self) -> Configuration | None: ...


class LeaderLink:
    """The link to one head. It has no deadline and no lease before the head's first message."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.address = ""  # where we reached the head
        self.newest = -1  # serial number of its newest message
        self.is_dead = False  # proven by its host
        self.is_released = False  # the head has reported that it no longer leads
        self._workers_until = -math.inf  # the end of the worker lease
        self._contact = Contact()
        self._answered = Acknowledged()  # which of our reports the head has answered

    def hear(self, beat: Heartbeat, address: str, now: float) -> bool:
        """Note a message. Returns whether it is new: an old one does not show a living head."""
        if beat.serial <= self.newest:
            return False
        # Not `Contact.hear`: the connection that brought the message may have been closed since.
        self._contact.heard = now
        self.address = address
        self.newest = beat.serial
        return True

    @property
    def was_heard(self) -> bool:
        return self._contact.heard is not None

    @property
    def is_closed(self) -> bool:
        return self._contact.closed is not None

    def extend_lease(self, beat: Heartbeat) -> float | None:
        """Return the new end of the worker lease; None if the message does not extend it."""
        self._answered.hear(beat.heard)
        start = self._answered.lease_start
        until = -math.inf if start is None else start + beat.keep
        if not beat.keep or until <= self._workers_until:
            return None
        self._workers_until = until
        return until

    def miss(self, seconds: float) -> None:
        """Move the worker lease back: it continued while this process did not run for `seconds`."""
        self._answered.miss(seconds)
        self._workers_until -= seconds

    def report_sent(self, serial: int, now: float) -> None:
        self._answered.send(serial, now)

    def reopen(self, address: str) -> None:
        self.address = address
        self._contact.reopen()

    def close(self, now: float) -> None:
        self._contact.close(now)

    def free_at(self) -> float:
        """Return when our vote lease ends, and so this agent may follow another head: `inf` if this
        head was never heard, `-inf` if it is dead or has released us.
        """
        if self.is_dead or self.is_released:
            return -math.inf
        return self.silent_at(self.timing.vote_lease)

    def silent_at(self, seconds: float) -> float:
        """Return when the silence of the head reaches `seconds`; `inf` if it was never heard."""
        heard = self._contact.heard
        return math.inf if heard is None else heard + seconds

    def evidence(self, now: float) -> str:
        """Return why the head counts as lost."""
        assert self.is_dead or self.was_heard, "a head that was never heard cannot be lost"
        return (Loss.EXITED if self.is_dead else Loss.SILENT).words(now - self.silent_at(0.0))
