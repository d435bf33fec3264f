"""The offset of the head's clock from an agent's.

An agent knows when it sent a report, and when the order that answers it arrived. The head read its
clock in between, so the error is at most half of the round trip, as in the Network Time Protocol
(RFC 5905).

If a machine was suspended, its clock stopped, so earlier measurements are wrong. They count until
their error, which grows with DRIFT, is larger than that of a new one. With a round trip of a few
milliseconds this takes less time than passes between two samples, and one sample names nobody.
"""

from __future__ import annotations

from collections import deque

from ..protocol.values import value

REMEMBERED = 64  # reports, and round trips
DRIFT = 1e-3  # seconds per second: twice the largest correction of NTP


@value(frozen=True)
class Offset:
    seconds: float  # to be added to this agent's time
    error: float  # the greatest possible error, in seconds


class ClockOffset:
    """The offset of the clock of the agent that this one reports to, usually the head."""

    def __init__(self) -> None:
        self._agent: int | None = None
        self._sent: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)  # serial number, when sent
        self._known: deque[tuple[Offset, float]] = deque(maxlen=REMEMBERED)  # when it was measured

    def report_sent(self, serial: int, now: float) -> None:
        self._sent.append((serial, now))

    def hear(self, agent: int, answers: int, clock: float, now: float) -> None:
        """Note an order that answers the report `answers`; the sender's clock was `clock`. Only the
        first order that answers a report counts.
        """
        if agent != self._agent:
            self._agent = agent
            self._known.clear()
        while self._sent and self._sent[0][0] < answers:
            self._sent.popleft()
        if not self._sent or self._sent[0][0] != answers:
            return
        _, sent = self._sent.popleft()
        self._known.append((Offset(clock - (sent + now) / 2, (now - sent) / 2), now))

    def of(self, agent: int, now: float) -> Offset | None:
        """Return the offset of an agent's clock; None if it is not known yet."""
        if agent != self._agent or not self._known:
            return None
        errors = [offset.error + DRIFT * (now - when) for offset, when in self._known]
        least = min(errors)
        return Offset(self._known[errors.index(least)][0].seconds, least)
