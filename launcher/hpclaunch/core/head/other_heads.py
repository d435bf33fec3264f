"""Before the first round: whether another agent leads already, which the agents that are not here
may know.
"""

from __future__ import annotations

import math

from ..consensus.rotation import Rotation
from ..protocol.model import Job
from .roster import Roster

MOST_ASKED = 8  # agents that are not here, of those that a new head asks


class OtherHeads:
    """Its methods are for a head that knows of no round."""

    def __init__(self, job: Job, roster: Roster, rotation: Rotation) -> None:
        self.job, self.roster, self.rotation = job, roster, rotation
        self._since = math.inf
        self._asked_at = -math.inf  # when `choose_whom_to_ask` was called last
        self._asked: list[int] = []  # what it returned

    def begin(self, now: float) -> None:
        """This agent begins to lead."""
        self._since = now

    @property
    def _asks_at(self) -> float:
        return self._since + self.job.timing.election

    @property
    def _asks_until(self) -> float:
        return self._asks_at + 2 * self.job.timing.election

    @property
    def _unasked(self) -> list[int]:
        """Agents that are not here, and may follow another head."""
        if not self.job.elects:
            return []
        return sorted(self.roster.absent.intersection(self.rotation.agents))

    def are_awaited(self, now: float) -> bool:
        """Return whether to wait for what the others answer."""
        return now < self._asks_until and bool(self._unasked)

    def next_deadline(self) -> float:
        """Return when to call `choose_whom_to_ask` again."""
        if self._asked_at >= self._asks_until or not self._unasked:
            return math.inf
        return min(at for at in (self._asks_at, self._asks_until) if at > self._asked_at)

    def choose_whom_to_ask(self, now: float, *, knows_rounds: bool) -> list[int] | None:
        """Return to which agents to report as well; None if that is as before."""
        self._asked_at = now
        unasked = [] if knows_rounds else self._unasked
        if not unasked:
            asked = []
        elif not self._asked and now >= self._asks_at:
            asked = unasked[:MOST_ASKED]
        else:
            return None
        if asked == self._asked:
            return None
        self._asked = asked
        return asked
