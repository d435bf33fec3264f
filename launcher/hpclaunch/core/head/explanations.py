"""What is said of the failures that ended a round."""

from __future__ import annotations

from ..protocol.model import Failure
from .advice import advise
from .restarts import Budget, how


class Explanations:
    """Each piece of advice is given once."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._advised = {""}

    def of(self, cause: Failure, *, delay: float) -> list[str]:
        """What the user is to know before the next round, which begins after `delay` seconds."""
        said = f"{how(cause)}; {self.budget.words}"
        if delay:
            said += f", in {delay:.0f} s since {cause.host} fails again and again"
        return [said]

    def advice(self, cause: Failure) -> list[str]:
        """A script that is at fault fails again and again: say what can be done about it now."""
        advice = "" if cause.signal else advise(cause)
        if advice in self._advised:
            return []
        self._advised.add(advice)
        return [f"advice: {advice}"]
