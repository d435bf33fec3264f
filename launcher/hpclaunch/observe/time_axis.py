"""The axis of time on a page."""

from __future__ import annotations

from collections.abc import Callable

from ..core.protocol.values import value
from .text_style import HOUR, MINUTE

UNITS = 20_000  # of a drawing, from its left to its right
LocalTime = Callable[[float, str], str]  # writes a time in the form of strftime


@value(frozen=True)
class TimeAxis:
    """From `begin` to `end`, in seconds since the epoch: at least one second."""

    begin: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.begin

    def share(self, at: float) -> float:
        return min(1.0, max(0.0, (at - self.begin) / self.length))

    def x(self, at: float) -> int:
        """Return the place in units of a drawing."""
        return round(UNITS * self.share(at))


def ahead(at: float, local: LocalTime) -> int:
    """Return by how many seconds the local time is ahead of UTC."""
    zone = local(at, "%z")
    seconds = HOUR * int(zone[1:3]) + MINUTE * int(zone[3:5])
    return -seconds if zone.startswith("-") else seconds
