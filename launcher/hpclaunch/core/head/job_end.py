"""The end of the job, from its verdict on: what Slurm says of its SIGTERM, the checkpoint that was
saved last, and whether another run follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..protocol.effects import ChooseCheckpoint, Effect
from ..protocol.events import CheckpointChosen, EndFound
from ..protocol.model import Job, Verdict
from .allocation_end import AllocationEnd
from .last_search import LastSearch
from .requeueing import RequeueDecision
from .restarts import Budget


class JobEnd:
    def __init__(
        self, job: Job, allocation: AllocationEnd, budget: Budget, numbers: Iterator[int]
    ) -> None:
        """`numbers` are those of the head's questions."""
        self.job, self.allocation, self.budget = job, allocation, budget
        self._numbers = numbers
        self.last_search = LastSearch(job, numbers)
        self._requeue = RequeueDecision(job)
        self._hears_out_until = math.inf  # Slurm, before the job ends

    def round_ended(self) -> None:
        """The job goes on after a round."""
        self.last_search = LastSearch(self.job, self._numbers)

    @property
    def is_waiting(self) -> bool:
        """Whether the job is about to end, or to go on, once something is known."""
        return self.last_search.is_open or self._hears_out_until < math.inf

    def next_deadline(self) -> float:
        return min(self.last_search.until, self._hears_out_until)

    def found(self, event: EndFound) -> list[Effect]:
        """Take in what Slurm says of another run."""
        return self._requeue.found(event)

    def ask(self, verdict: Verdict, search: ChooseCheckpoint, now: float) -> list[Effect] | None:
        """Find out what `decide` needs. Returns None once there is nothing to wait for."""
        until = self.allocation.heard_out_at(verdict)
        self._hears_out_until = until if now < until else math.inf
        if now < until:
            return []
        if self._requeue.depends_on_progress(self.allocation.reconsidered(verdict)):
            return self.last_search.ask(search, now)
        return None

    def decide(self, verdict: Verdict, now: float) -> Verdict:
        """Return the verdict with its origin as Slurm explains it, and with what comes next."""
        verdict, progress = self.allocation.reconsidered(verdict), False
        if self._requeue.depends_on_progress(verdict):
            saved: CheckpointChosen | None = self.last_search.found
            progress = saved is None or self.budget.is_beyond_first(saved)
        left = self.allocation.left(now)
        return self._requeue.decide(verdict, left or 0.0, progress=progress)
