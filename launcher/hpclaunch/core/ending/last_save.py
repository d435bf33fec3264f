"""The search for the checkpoint that was saved last, once the job is about to end."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..protocol.effects import ChooseCheckpoint, Effect
from ..protocol.events import CheckpointChosen
from ..protocol.model import Job
from ..protocol.values import replace


class LastSave:
    """There is one search at most in a round."""

    def __init__(self, job: Job, numbers: Iterator[int]) -> None:
        """`numbers` are those of the head's questions."""
        self.job, self._numbers = job, numbers
        self.until = math.inf  # when the job ends without an answer
        self.found: CheckpointChosen | None = None
        self._number = 0  # of the search; 0: it has not begun

    @property
    def has_begun(self) -> bool:
        return self._number > 0

    @property
    def is_open(self) -> bool:
        return self.until < math.inf

    def search(
        self, search: ChooseCheckpoint, now: float, *, ended_well: bool = False
    ) -> list[Effect] | None:
        """Begin the search, or wait for its answer. Returns None once there is nothing to wait for:
        the checkpoint is `found`, or could not be found.

        `ended_well`: all workers have ended with 0, and were not ended.
        """
        if self.job.saves and not self.has_begun:
            self._number, self.until = next(self._numbers), now + self.job.timing.search
            return [replace(search, ended_well=ended_well, number=self._number)]
        if now < self.until < math.inf:
            return []
        self.until = math.inf
        return None

    def has_asked(self, number: int) -> bool:
        """Return whether this is the number of the search that is open."""
        return self.is_open and number == self._number

    def answer(self, found: CheckpointChosen | None) -> None:
        """Note the answer; None: the search has failed."""
        self.found, self.until = found, math.inf
