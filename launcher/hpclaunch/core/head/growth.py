"""When to end a round so that other nodes can take part in the next one: nodes that have come, or
come back, and spares in place of stragglers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..protocol.effects import ChooseCheckpoint, Effect
from ..protocol.events import CheckpointChosen
from ..protocol.model import Grow, Job
from ..protocol.values import replace
from .roster import Roster


class Growth:
    """Nodes that have come take part in the next round in any case. This tells whether to end the
    running round for their sake.
    """

    def __init__(self, job: Job, roster: Roster, numbers: Iterator[int]) -> None:
        """`numbers` are those of the head's questions."""
        self.job, self.roster, self._numbers = job, roster, numbers
        self._base: str | None = None  # the mark of the first one found; "": that is new as well
        self._since = math.inf  # what was saved after this is new
        self._newest: str | None = None  # the mark of the newest checkpoint
        self._look_at = -math.inf  # when to search again
        self._search = 0  # the number of the search that is running, which may take long; 0: none

    def begin(self, since: float = math.inf) -> None:
        """A new round begins; or, with `since`, only a checkpoint from then on is new."""
        self._since = since
        self._base = self._newest = None
        self._look_at = -math.inf
        self._search = 0

    @property
    def is_looking(self) -> bool:
        return self._search > 0

    def has_asked(self, number: int) -> bool:
        """Return whether this is the number of the search that is running."""
        return self.is_looking and number == self._search

    def chosen(self, newest: CheckpointChosen, now: float) -> None:
        """The search that is running has found the newest checkpoint."""
        self._search = 0
        self._newest = newest.mark
        if self._base is None:
            is_new = newest.age is not None and now - newest.age > self._since
            self._base = "" if is_new else newest.mark

    def failed(self) -> None:
        """The search has failed. There will be another one at the usual time."""
        self._search = 0

    def newcomers(self, groups: list[int], number: int) -> list[str]:
        """Return the hosts that could take part in a larger round; [] if the job does not grow.

        `groups` are the nodes of round `number`. Once a worker has finished, the round is about to
        end by itself, and there are no newcomers.
        """
        reports = [p.report for p in self.roster if p.report is not None]
        if any(r.exits for r in reports if r.round == number):
            return []
        room = (self.job.most or self.job.nodes) - len(groups)
        if room <= 0 or self.job.grow is Grow.NEVER:
            return []
        nodes = sorted(self.roster.nodes.difference(groups))[:room]
        return [p.host for p in self.roster if p.place.node in nodes]

    @property
    def is_worthwhile(self) -> bool:
        """Whether the round may be ended now for the sake of newcomers."""
        return self.job.grow is Grow.NOW or self.has_new_checkpoint

    @property
    def has_new_checkpoint(self) -> bool:
        """Whether one was saved in this round, so that little work is lost with it."""
        return self._newest != self._base

    def look(self, search: ChooseCheckpoint, now: float) -> list[Effect]:
        """Search for a new checkpoint if it is time to do so."""
        if now < self._look_at and not self.is_looking:
            return []
        # Put off while a search is running, so that the interval counts from the end of a search.
        self._look_at = now + self.job.timing.look
        if self.is_looking:
            return []
        self._search = next(self._numbers)
        return [replace(search, number=self._search)]
