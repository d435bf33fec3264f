"""What is heard of another agent, and when: all on the clock of the agent that listens.

A closed connection alone says little, for a network may close one and open it again, or close it
and go silent. But it is a reason to ask the other's host, whose kernel refuses a connection once
the agent is dead.
"""

from __future__ import annotations

import math
from collections import deque


class Contact:
    def __init__(self) -> None:
        self.heard: float | None = None  # the last message; None before the first
        self.closed: float | None = None  # its connection was, and nothing was heard since

    def hear(self, now: float) -> None:
        self.heard = now
        self.closed = None

    def reopen(self) -> None:
        """Its connection is there again, and the channel vouches for who made it."""
        self.closed = None

    def close(self, now: float) -> None:
        if self.heard is not None and self.closed is None:
            self.closed = now

    def evidence(self, now: float, *, dead: bool) -> str:
        """Why the other counts as lost, in words."""
        if dead and self.closed is not None:
            return "its connection was closed and cannot be made again"
        if dead:
            return "it is down"
        assert self.heard is not None, "an agent that was never heard cannot be lost"
        return f"it has been silent for {now - self.heard:.0f} s"


class Acknowledged:
    """When the newest of our messages was sent that the other end has answered.

    Whatever an agent promises with an answer, it promises from when it heard us, which is later
    than we sent. So a lease that is counted from here is over for us before it is for the other.
    """

    def __init__(self) -> None:
        self.at: float | None = None
        self.sent_at = -math.inf  # the newest
        self._sent: deque[tuple[int, float]] = deque(maxlen=64)

    def send(self, serial: int, now: float) -> None:
        self.sent_at = now
        self._sent.append((serial, now))

    def hear(self, serial: int) -> bool:
        """The other end has had this one; returns whether that is news."""
        news = False
        while self._sent and self._sent[0][0] <= serial:
            self.at = self._sent.popleft()[1]
            news = True
        return news
