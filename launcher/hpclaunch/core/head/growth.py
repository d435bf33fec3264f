"""A world that is smaller than it may be, and a node that could take part: when it is taken in."""

from __future__ import annotations

import math

from ..protocol.effects import ChooseCheckpoint, Effect
from ..protocol.model import Grow, Job
from .roster import Roster


class Growth:
    """Whoever has come takes part in the next round in any case. This may end one for it."""

    def __init__(self, job: Job, roster: Roster) -> None:
        self.job, self.roster = job, roster
        self._base: str | None = None  # the newest checkpoint when there came to be somebody
        self._newest: str | None = None
        self._look_at = -math.inf
        self._looking = False  # a large checkpoint takes longer to verify than until the next look

    def begin(self) -> None:
        """A round does."""
        self._base = self._newest = None
        self._look_at = -math.inf
        self._looking = False

    def chosen(self, mark: str) -> None:
        """The newest checkpoint, by what makes two saves under one name differ."""
        self._looking = False
        self._newest = mark
        self._base = mark if self._base is None else self._base

    def failed(self) -> None:
        """The search did; there is another in its time."""
        self._looking = False

    def newcomers(self, groups: list[int], number: int) -> list[str]:
        """The hosts that could make the world of this round larger, if they are to. A round with a
        worker that has finished is about to end by itself."""
        reports = [p.report for p in self.roster if p.report is not None]
        if any(r.exits for r in reports if r.round == number):
            return []
        room = (self.job.most or self.job.nodes) - len(groups)
        if room <= 0 or self.job.grow is Grow.NEVER:
            return []
        nodes = sorted(self.roster.nodes.difference(groups))[:room]
        return [p.host for p in self.roster if p.place.node in nodes]

    @property
    def is_time(self) -> bool:
        """Little is lost by ending the round now."""
        return self.job.grow is Grow.NOW or self._newest != self._base

    def look(self, search: ChooseCheckpoint, now: float) -> list[Effect]:
        if self.job.grow is not Grow.CHECKPOINT or (now < self._look_at and not self._looking):
            return []
        self._look_at = now + self.job.timing.look  # counted from the end of a search
        if self._looking:
            return []
        self._looking = True
        return [search]
