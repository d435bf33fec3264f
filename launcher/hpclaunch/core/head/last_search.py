"""The search for the checkpoint that was saved last, once the job is about to end."""

from __future__ import annotations

import math

from ..protocol.effects import ChooseCheckpoint, Effect
from ..protocol.events import CheckpointChosen
from ..protocol.model import Job
from ..protocol.values import replace


class LastSearch:
    """There is one at most in a round."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.until = math.inf  # when to go on without an answer
        self.found: CheckpointChosen | None = None
        self.has_begun = False

    @property
    def is_open(self) -> bool:
        return self.until < math.inf

    def ask(
        self, search: ChooseCheckpoint, now: float, *, ended_well: bool = False
    ) -> list[Effect] | None:
        """None once there is nothing to wait for: it is `found`, or was not to be found.

        `ended_well`: all workers have ended with 0, and were not ended.
        """
        if self.job.saves and not self.has_begun:
            self.has_begun, self.until = True, now + self.job.timing.search
            return [replace(search, ended_well=ended_well)]
        if now < self.until < math.inf:
            return []
        self.until = math.inf
        return None

    def answer(self, found: CheckpointChosen | None) -> None:
        """None: the search has failed."""
        self.found, self.until = found, math.inf
