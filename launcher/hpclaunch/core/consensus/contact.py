"""The contact with another agent. All times are on this agent's clock.

A closed connection alone proves little, since a network fault may close it. But it is a reason to
ask the other agent's host whether the agent is dead.
"""

from __future__ import annotations

import math
from collections import deque


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
