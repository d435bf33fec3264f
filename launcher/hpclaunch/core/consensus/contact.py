"""The contact with another agent. All times are on this agent's clock.

A closed connection alone proves little, since a network fault may close it. But it is a reason to
ask the other agent's host whether the agent is dead.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

from ..protocol.configuration import Configuration
from ..protocol.losses import Loss
from ..protocol.timing import Timing


class Contact:
    def __init__(self) -> None:
        self.heard: float | None = None  # when the last message arrived; None before the first
        # When the connection was closed; None if it is open, or a message has arrived since.
        self.closed: float | None = None

    def hear(self, now: float) -> None:
        self.heard = now
        self.closed = None

    def reopen(self) -> None:
        """Note that the connection, which the channel has authenticated, is open again."""
        self.closed = None

    def close(self, now: float) -> None:
        if self.heard is not None and self.closed is None:
            self.closed = now


class Acknowledged:
    """The messages of ours that the other end has answered, and when we sent them.

    An answer grants a lease that the other end counts from the arrival of our message. We count it
    from the earlier moment at which we sent the message, so it ends for us first.
    """

    def __init__(self) -> None:
        # When we sent the newest message that was answered; None before the first answer.
        self.lease_start: float | None = None
        self.last_sent_at = -math.inf
        self._unanswered: deque[tuple[int, float]] = deque(maxlen=64)  # serial number, when sent

    def send(self, serial: int, now: float) -> None:
        self.last_sent_at = now
        self._unanswered.append((serial, now))

    def miss(self, seconds: float) -> None:
        """Move all times back: leases continued while this process did not run for `seconds`."""
        if self.lease_start is not None:
            self.lease_start -= seconds
        self.last_sent_at -= seconds
        sent = ((serial, at - seconds) for serial, at in self._unanswered)
        self._unanswered = deque(sent, maxlen=self._unanswered.maxlen)

    def hear(self, serial: int) -> bool:
        """Note an answer to the message `serial`. Returns whether the answer is new."""
        news = False
        while self._unanswered and self._unanswered[0][0] <= serial:
            self.lease_start = self._unanswered.popleft()[1]
            news = True
        return news


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
    """The contact of a follower with its head. It has no deadline and no lease before the head's
    first message.

    By answering an order, the follower grants the head a **vote lease**: it follows no other head
    until the lease is over. With each order, the head grants a **worker lease**: see presence.py.
    """

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
