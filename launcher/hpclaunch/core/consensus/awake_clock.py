"""A clock that stands still while this process does not run: its job was suspended (`scontrol
suspend`, gang scheduling), somebody has stopped it, its machine stood still, or it hung.

Nobody can be heard in that time, so it must not count as another agent's silence; and no time-out
should be over when the process goes on, as if something had happened in between. So all of the core
runs on this clock. Leases are the exception: others count them meanwhile. What is known of a lease
is moved back by the time that was missed.

That the process did not run shows in how late it is for its next deadline. The agents of a job
exchange messages at every beat, so there is always one. An agent that is alone may have none for
long; it cannot tell since when it was stopped, and takes all of the time since the last event.
"""

from __future__ import annotations

LATE = 1.0  # seconds; a process that runs is not as late as this


class AwakeClock:
    def __init__(self) -> None:
        self.missed = 0.0  # seconds in which this process did not run, in total

    def miss(self, now: float, *, due: float, since: float) -> float:
        """Find out whether this process did not run for a while; 0 if it did, else for how long.

        `now` is on the caller's clock. On this one, something was due at `due`, and the process may
        have been stopped from `since` on.
        """
        awake = self.awake(now)
        if awake < due + LATE:
            return 0.0
        self.missed += awake - since
        return awake - since

    def awake(self, now: float) -> float:
        """The time of this clock at a time of the caller's."""
        return now - self.missed

    def real(self, awake: float) -> float:
        """The time of the caller's clock."""
        return awake + self.missed
