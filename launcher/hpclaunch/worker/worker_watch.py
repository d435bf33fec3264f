"""What is found out about the workers of a round while they run, and the notices that they take.

Their progress is looked at again and again (`progress_watch.py`); samples, vital signs and the
places where they are (evidence) are taken when somebody asks for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from .fork_server_messages import (
    Event,
    Evidence,
    Offered,
    Progress,
    Sample,
    Taken,
    Unhandled,
    Unheard,
    Vitals,
)
from .progress_watch import ProgressWatch
from .sampler import Sampler
from .step_notices import StepNotices
from .vitals import VitalSigns
from .workers import Workers


class Questions(NamedTuple):
    """The questions to the workers where they are, of which the next is asked at a time."""

    number: int
    next_at: float
    pauses: Iterator[float]


class WorkerWatch:
    """Begun anew with every round."""

    def __init__(self, workers: Workers, report: Callable[[Event], None]) -> None:
        self._workers = workers
        self._report = report
        self._progress = ProgressWatch()
        self._sampler = Sampler(self._progress)
        self._vitals = VitalSigns(self._progress)
        self._notices = StepNotices(self._progress)
        self._questions: Questions | None = None
        self._given = 0  # the number of the last notice that was given in this round
        self._untaken = 0  # the same, until all have taken it

    def begin(self, ranks: Iterable[int]) -> dict[int, dict[str, str]]:
        """Begin a round. Return what each rank needs in its environment to report its progress."""
        self._sampler.begin()
        return self._progress.begin(ranks)

    def born(self, rank: int, pid: int) -> None:
        self._progress.born(rank, pid)

    def ended(self, rank: int) -> None:
        self._progress.ended(rank)

    def go_on(self) -> None:
        """Begin anew: nothing was looked at while the workers stood still."""
        self._progress.go_on()

    def end_notice(self) -> None:
        """Report whether the workers, all of which have ended, have ended with the notice's step.
        Call it before what they have left behind is looked at."""
        self._look_at_notice()
        if self._given and self._notices.was_last(self._given):
            self._report(Taken(self._given, last=True))
            self._given = 0

    def end(self) -> list[int]:
        """End the round. Return on what the workers spent their time, in milliseconds."""
        self._questions, self._given, self._untaken = None, 0, 0
        self._sampler.cancel()
        spent, _ = self._progress.spent()
        self._progress.end()
        return list(spent)

    # What is asked

    def await_stillness(self, seconds: Iterable[float]) -> None:
        self._progress.await_stillness(seconds)

    def sample(self, number: int) -> None:
        if self._questions is None:
            self._sampler.ask(number, self._workers.pids())

    def vitals(self, number: int) -> None:
        self._report(Vitals(number, self._vitals.of(self._workers.pids())))

    def gather(self, number: int, *, only_ask: bool) -> None:
        """Begin to ask the workers where they are."""
        self._sampler.cancel()  # its answers would mix
        self._questions = Questions(number, 0.0, self._progress.ask(self._workers.pids()))
        self._ask(self._questions, only_ask=only_ask)

    # Notices

    def offer(self, number: int, step: int, signum: int) -> None:
        self._report(Offered(number, **self._notices.offer(number, step, signum)))

    def withdraw(self) -> None:
        self._notices.withdraw()

    def give(self, number: int) -> None:
        without = self._notices.give(self._workers.pids(), number)
        if without:
            self._report(Unhandled(self._notices.signum, without))
        if len(without) == len(self._workers.living):
            self._report(Unheard(number))
        self._given = self._untaken = number
        self._look_at_notice()

    def _look_at_notice(self) -> None:
        if self._untaken and self._notices.is_taken(self._untaken):
            self._report(Taken(self._untaken, last=False))
            self._untaken = 0

    # Looks

    def due(self, *, only_ask: bool) -> float:
        """Return when `look` is to be called again."""
        if self._questions is not None:
            return self._questions.next_at
        return math.inf if only_ask else min(self._progress.due(), self._sampler.due())

    def look(self, *, only_ask: bool) -> None:
        """Look at the workers, if it is time. With `only_ask`, only go on with questions: workers
        that are held or stopped make no progress."""
        self._look_at_notice()
        if self._questions is not None:
            self._ask(self._questions, only_ask=only_ask)
        elif not only_ask:
            self._look_at_workers()

    def _ask(self, questions: Questions, *, only_ask: bool) -> None:
        if time.monotonic() < questions.next_at:
            return
        pause = next(questions.pauses, None)
        if pause is not None:
            self._questions = questions._replace(next_at=time.monotonic() + pause)
            return
        self._questions = None
        if not only_ask:
            self._look_at_workers(at_once=True)  # some may go on meanwhile
        self._report(Evidence(questions.number, self._progress.evidence(self._workers.pids())))

    def _look_at_workers(self, *, at_once: bool = False) -> None:
        pids = self._workers.pids()
        seen = self._progress.look(pids, at_once=at_once)
        if seen is not None:
            self._report(Progress(**seen))
        sample = self._sampler.look(pids)
        if sample is not None:
            self._report(Sample(**sample))
