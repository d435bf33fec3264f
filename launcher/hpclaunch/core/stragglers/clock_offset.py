"""How far the head's clock is ahead of an agent's.

An agent knows when it has sent a report, and when the order that answers it has come. In between,
the head has read its clock: the shorter the round trip, the better is it known when (as in the
Network Time Protocol, RFC 5905).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

REMEMBERED = 64  # reports, and round trips: clocks drift apart by some microseconds a second


@dataclass(frozen=True, slots=True)
class Offset:
    seconds: float  # to be added to this agent's time
    error: float  # seconds; it is wrong by no more


class ClockOffset:
    """Of the head that this agent follows now."""

    def __init__(self) -> None:
        self._sent: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)  # serial number, when
        self._known: deque[Offset] = deque(maxlen=REMEMBERED)

    def forget(self) -> None:
        """Another head leads."""
        self._known.clear()

    def report_sent(self, serial: int, now: float) -> None:
        self._sent.append((serial, now))

    def hear(self, answers: int, clock: float, now: float) -> None:
        """An order has come that answers the report `answers`, when the head's clock was `clock`.
        A second order that answers the same report tells no more.
        """
        while self._sent and self._sent[0][0] < answers:
            self._sent.popleft()
        if self._sent and self._sent[0][0] == answers:
            _, sent = self._sent.popleft()
            self._known.append(Offset(clock - (sent + now) / 2, (now - sent) / 2))

    @property
    def best(self) -> Offset | None:
        """None: not known yet."""
        return min(self._known, key=lambda offset: offset.error, default=None)
