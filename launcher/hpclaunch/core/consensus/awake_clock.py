"""A clock that stops while this process does not run: its job was suspended (`scontrol
suspend`, gang scheduling), a signal stopped it, its machine was suspended, or it hung.

The process hears nobody during such a pause. The pause must not count as another agent's silence,
and no time-out may expire because of it, so the whole core runs on this clock. Leases are the
exception, since other agents count them during the pause: their times are moved back.

A pause is recognised by how late the process is for its next deadline. The agents of a job exchange
messages at every beat, so there is always a deadline. An agent that is alone may have none for a
long time: then the whole time since its last event counts as the pause.
"""

from __future__ import annotations

LATE = 1.0  # seconds; a running process is never that late


class AwakeClock:
    def __init__(self) -> None:
        self.missed = 0.0  # seconds in which this process did not run, in total

    def miss(self, now: float, *, due: float, since: float) -> float:
        """Return for how long this process did not run; 0 if it ran.

        `now` is on the caller's clock. `due` and `since` are on this clock: the deadline, and the
        earliest time at which the pause can have begun.
        """
        awake = self.awake(now)
        if awake < due + LATE:
            return 0.0
        self.missed += awake - since
        return awake - since

    def awake(self, now: float) -> float:
        """Convert a time of the caller's clock to this clock."""
        return now - self.missed

    def real(self, awake: float) -> float:
        """Convert a time of this clock to the caller's clock."""
        return awake + self.missed
