"""Where a time is on a page, and which times are named below it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .text_style import DAY, HOUR, MINUTE

UNITS = 20_000  # of a drawing, from its left to its right
EDGE = 0.06  # of the width: the name of a time that is nearer to the end would be cut off
STEPS = (
    *(1, 2, 5, 10, 15, 30),
    *(MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(HOUR * n for n in (1, 2, 3, 6, 12)),
    *(DAY * n for n in (1, 2, 7, 14, 28)),
)
LocalTime = Callable[[float, str], str]  # writes a time in the form of strftime


@dataclass(frozen=True, slots=True)
class AxisTick:
    percent: str  # of the width
    label: str


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Times are seconds since the epoch; there is at least a second from `begin` to `end`."""

    begin: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.begin

    def share(self, at: float) -> float:
        return min(1.0, max(0.0, (at - self.begin) / self.length))

    def x(self, at: float) -> int:
        """In units of a drawing."""
        return round(UNITS * self.share(at))

    def percent(self, at: float) -> str:
        return percent(self.share(at))

    def ticks(self, local: LocalTime, most: int) -> list[AxisTick]:
        """At most so many, at round times of the clock."""
        step = next((step for step in STEPS if self.length / step <= most), STEPS[-1])
        offset = ahead(self.begin, local)
        first = -int(-(self.begin + offset) // step) * step - offset
        count = int((self.end - first) // step) + 1
        times = [first + i * step for i in range(max(0, min(count, most)))]
        form = "%b %d" if step >= DAY else "%H:%M" if step >= MINUTE else "%H:%M:%S"
        whole = [at for at in times if EDGE < self.share(at) < 1 - EDGE]
        return [AxisTick(self.percent(at), local(at, form)) for at in whole]


def ahead(at: float, local: LocalTime) -> int:
    """By how many seconds the local time is ahead of UTC."""
    zone = local(at, "%z")
    seconds = HOUR * int(zone[1:3]) + MINUTE * int(zone[3:5])
    return -seconds if zone.startswith("-") else seconds


def percent(share: float) -> str:
    """As SVG takes it."""
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"
