"""Who is there: pure functions of what was heard from an agent, and when.

The evidence is judged on one clock, that of the agent which judges. A closed connection alone says
little, for a network may close one and open it again, or close it and go silent. But it is a
reason to ask the other's host, whose kernel refuses a connection once the agent is dead.

A **lease** keeps two worlds apart. An agent's workers may run until the loss time-out after the sending of
its newest report that the head has answered. The head cannot have heard that report before it was
sent, so when it gives a silent agent up, the lease is over: the agent's fork server has ended the
workers, even if the agent itself was stopped.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from ..protocol.model import Job


@dataclass(slots=True)
class Contact:
    """What is known of another agent's presence."""

    heard: float | None = None  # the last message; None before the first
    closed: float | None = None  # its connection was closed then and nothing was heard since

    def hear(self, now: float) -> None:
        self.heard = now
        self.closed = None

    def reopen(self) -> None:
        """Its connection is there again, and the channel vouches for who made it."""
        self.closed = None

    def close(self, now: float) -> None:
        if self.heard is not None and self.closed is None:
            self.closed = now


class Echo:
    """When the newest of our messages was sent that the other end has answered."""

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


def lost_at(contact: Contact, job: Job) -> float:
    """When this agent counts as lost if nothing more is heard: `inf` for one never heard."""
    if contact.heard is None:
        return math.inf
    return contact.heard + job.timing.loss


def evidence(contact: Contact, gone: bool, now: float) -> str:
    """Why an agent counts as lost, in words."""
    if gone:
        closed = contact.closed is not None
        return "its connection was closed and cannot be made again" if closed else "it is down"
    assert contact.heard is not None, "an agent that was never heard cannot be lost"
    return f"it has been silent for {now - contact.heard:.0f} s"
