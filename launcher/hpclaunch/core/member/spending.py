"""The time that an agent's workers spend in a round, in the form in which it is reported."""

from __future__ import annotations

from ..protocol.model import Doing, Spent


class Spending:
    """The time spent in one round, as of when the workers were last seen."""

    def __init__(self) -> None:
        self._since = 0.0  # when the round began here
        self._seen: Spent = ()

    def begin(self, now: float) -> None:
        self._since = now
        self._seen = (0,) * Doing.NOTHING + (Doing.START.value,)

    def saw(self, spent: Spent, doing: Doing, now: float) -> None:
        """Note what the fork server reports. Its `spent` counts from the birth of the workers; ()
        if that is not known.
        """
        if not (spent and self._seen):
            return
        start = self._seen[Doing.START]
        if not any(self._seen[Doing.IMPORTS : Doing.NOTHING]):
            start = max(0, round(1000 * (now - self._since)) - sum(spent))
        self._seen = (start, *spent, doing.value)

    def ended(self, at: float) -> None:
        """Note that the workers and the fork server ended at this time. The time since the last
        report counts as what the workers did then.
        """
        if not self._seen:
            return
        *spent, doing = self._seen
        if doing != Doing.NOTHING:
            spent[doing] += max(0, round(1000 * (at - self._since)) - sum(spent))
        self._seen = (*spent, Doing.NOTHING.value)

    def report(self, now: float | None) -> Spent:
        """Return the time spent; with `now`, also how long the round has lasted."""
        if now is None or not self._seen:
            return self._seen
        return (*self._seen, round(1000 * (now - self._since)))
