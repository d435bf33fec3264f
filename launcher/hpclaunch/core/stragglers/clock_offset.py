"""How far the head's clock is ahead of an agent's.

An agent knows when it has sent a report, and when the order that answers it has come. In between,
the head has read its clock: the shorter the round trip, the better is it known when (as in the
Network Time Protocol, RFC 5905).
"""

from __future__ import annotations

from collections import deque

from ..protocol.values import value

REMEMBERED = 64  # reports, and round trips
DRIFT = 1e-3  # seconds a second: twice what NTP corrects at most


@value(frozen=True)
class Offset:
    seconds: float  # to be added to this agent's time
    error: float  # seconds; it is wrong by no more


class ClockOffset:
    """Of the agent that this one reports to: the head, as a rule."""

    def __init__(self) -> None:
        self._agent: int | None = None
        self._sent: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)  # serial number, when
        self._known: deque[tuple[Offset, float]] = deque(maxlen=REMEMBERED)  # with when

    def report_sent(self, serial: int, now: float) -> None:
        self._sent.append((serial, now))

    def hear(self, agent: int, answers: int, clock: float, now: float) -> None:
        """An order has come that answers the report `answers`, when that agent's clock was `clock`.
        A second order that answers the same report tells no more.
        """
        if agent != self._agent:
            self._agent = agent
            self._known.clear()
        while self._sent and self._sent[0][0] < answers:
            self._sent.popleft()
        if not self._sent or self._sent[0][0] != answers:
            return
        _, sent = self._sent.popleft()
        offset = Offset(clock - (sent + now) / 2, (now - sent) / 2)
        known = self.of(agent, now)
        if known is not None:
            apart = abs(offset.seconds - known.seconds)
            if apart > offset.error + known.error:
                self._known.clear()  # one of the machines has slept, and its clock with it
        self._known.append((offset, now))

    def of(self, agent: int, now: float) -> Offset | None:
        """None: not known yet."""
        known = [
            Offset(offset.seconds, offset.error + DRIFT * (now - when))
            for offset, when in self._known
        ]
        best = min(known, key=lambda offset: offset.error, default=None)
        return best if agent == self._agent else None
