"""The time that an agent's workers spend in a round, in the form in which it is reported."""

from __future__ import annotations

from ..protocol.model import Doing, Spent
from ..protocol.values import replace


class Spending:
    """The time spent in one round, as of when the workers were last seen."""

    def __init__(self) -> None:
        self._since = 0.0  # when the round began here
        self._seen = Spent()

    def begin(self, now: float) -> None:
        self._since = now
        self._seen = Spent((0,) * Doing.NOTHING)

    def saw(self, spent: tuple[int, ...], doing: Doing, now: float) -> None:
        """Note what the fork server reports. Its `spent` counts from the start of the workers; ()
        if that is not known.
        """
        if not (spent and self._seen.times):
            return
        start, *known = self._seen.times
        if not any(known):
            start = max(0, self.elapsed(now) - sum(spent))
        self._seen = Spent((start, *spent), doing)

    def ended(self, at: float) -> None:
        """Note that the workers and the fork server ended at this time. The time since the last
        report counts as what the workers did then.
        """
        times, doing = [*self._seen.times], self._seen.doing
        if times and doing is not Doing.NOTHING:
            times[doing] += max(0, self.elapsed(at) - sum(times))
            self._seen = Spent(tuple(times), Doing.NOTHING)

    def elapsed(self, now: float) -> int:
        """Return the milliseconds since the round began here."""
        return round(1000 * (now - self._since))

    def report(self, now: float | None = None) -> Spent:
        """Return the time spent; with `now`, also how long the round has lasted."""
        if now is None or not self._seen.times:
            return self._seen
        return replace(self._seen, elapsed=self.elapsed(now))
