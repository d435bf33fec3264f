"""A clock that stops while this process does not run: its job was suspended (`scontrol
suspend`, gang scheduling), somebody has stopped it, its machine stood still, or it hung.

The process hears nobody in that time, so it must not count as another agent's silence, and no
time-out should be over when the process continues. So all of the core runs on this clock. Leases
are the exception, since others count them meanwhile: their times are moved back.

A pause shows in how late the process is for its next deadline. The agents of a job exchange
messages at every beat, so there is always a deadline. An agent that is alone may have none for
long: then all of the time since its last event counts as the pause.
"""

from __future__ import annotations

LATE = 1.0  # seconds; a process that runs is not as late as this


class AwakeClock:
    def __init__(self) -> None:
        self.missed = 0.0  # seconds in which this process did not run, in total

    def miss(self, now: float, *, due: float, since: float) -> float:
        """Return for how long this process did not run; 0 if it ran.

        `now` is on the caller's clock. On this one, something was due at `due`, and the process may
        have been stopped from `since` on.
        """
        awake = self.awake(now)
        if awake < due + LATE:
            return 0.0
        self.missed += awake - since
        return awake - since

    def awake(self, now: float) -> float:
        """Return the time of this clock at a time of the caller's."""
        return now - self.missed

    def real(self, awake: float) -> float:
        """Return the time of the caller's clock."""
        return awake + self.missed
