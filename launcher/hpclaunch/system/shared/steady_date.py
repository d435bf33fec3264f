"""Dates for an agent's records: setting the clock makes no period longer or shorter."""

from __future__ import annotations

import time


class SteadyDate:
    """The time since the epoch, by this machine's clock as it was when this object was made."""

    def __init__(self) -> None:
        self._ahead = time.time() - _awake_or_not()

    def now(self) -> float:
        return self._ahead + _awake_or_not()


def _awake_or_not() -> float:
    """Return the seconds since boot, including those in which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
