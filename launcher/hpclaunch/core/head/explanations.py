"""What the user is told of the failure that ended a round."""

from __future__ import annotations

from ..ledger.last_lines import advise
from ..protocol.model import Failure
from .restarts import Budget, how


class Explanations:
    """Each piece of advice is given once."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._advised = {""}

    def of(self, cause: Failure, *, node_delay: float, outage_delay: float) -> list[str]:
        """Say how the round failed, and that the next one begins after the longer delay (s)."""
        said = f"{how(cause)}; {self.budget.describe()}"
        if outage_delay > node_delay:
            said += f", in {outage_delay:.0f} s, so that the file system or network can recover"
        elif node_delay:
            said += f", in {node_delay:.0f} s because {cause.host} fails again and again"
        return [said]

    def advice(self, cause: Failure) -> list[str]:
        """Advice on a failure of the script, given before the restart: it may well fail again."""
        advice = "" if cause.signal else advise(cause)
        if advice in self._advised:
            return []
        self._advised.add(advice)
        return [f"advice: {advice}"]
