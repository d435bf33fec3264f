"""The end of the job that Slurm has announced, and the meaning of its SIGTERM."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..protocol.effects import AskForEnd, Effect, Record
from ..protocol.events import EndFound
from ..protocol.facts import EndAnnounced
from ..protocol.job_state import JobState
from ..protocol.messages import Report
from ..protocol.model import EndKind, Job, Origin, Verdict
from ..protocol.values import replace
from ..protocol.wording import signal_name
from .table import ENDS, verdict

MOVED = 5.0  # seconds; an end that differs by less is the same
ANNOUNCED_BY = {row.state: origin for origin, row in ENDS.items() if row.state is not None}


class AllocationEnd:
    def __init__(self, job: Job, numbers: Iterator[int]) -> None:
        self.job, self.timing, self._numbers = job, job.timing, numbers
        self._question = 0  # the number of the last question
        self.announced: Origin | None = None  # the end that SIGTERM has announced
        self.at = math.inf  # when Slurm ends the job
        self._learned_at = -math.inf  # when that was learned
        self._drain = 0.0  # the longest copy of a checkpoint from memory to storage, in seconds
        self.ask_at = math.inf  # when to ask Slurm
        self._asked_at = -math.inf
        self._known_at = -math.inf  # when the last answered question was asked
        self._warned: tuple[int, str] | None = None  # the signal, and the first host to report it
        self.warned_at = math.inf

    def begin_to_ask(self, now: float) -> None:
        """Ask Slurm from now on: this agent leads."""
        self.ask_at = now if self.job.may_end else math.inf

    @property
    def stop_at(self) -> float:
        """When to stop the workers: they must be gone before Slurm kills them, their last save must
        reach storage, and another run may have to be asked for. At an end that is near when it is
        announced, half of the time is left to the workers.
        """
        latest = self.at - self.timing.grace - self.timing.closing
        return latest - min(self._drain, max(0.0, latest - self._learned_at) / 2)

    def is_over(self, now: float) -> bool:
        return now >= self.stop_at

    def left(self, now: float) -> float | None:
        """Return the seconds until Slurm ends the job; None if that is not known."""
        return None if self.at == math.inf else max(0.0, self.at - now)

    def learn_drain(self, seconds: float) -> None:
        """Note how long the copy of a checkpoint from memory to storage took."""
        self._drain = max(self._drain, seconds)

    # Slurm's answers

    def ask(self, now: float) -> list[Effect]:
        """Ask Slurm when the job ends, if it is time to do so."""
        if now < self.ask_at:
            return []
        self._asked_at = now
        self.ask_at = now + self.timing.ask_again
        self._question = next(self._numbers)
        return [AskForEnd(self._question)]

    def found(self, event: EndFound, now: float) -> list[Effect]:
        """Note what Slurm has answered, and record the end that its SIGTERM has announced."""
        if event.number == self._question:  # else it is late
            self._known_at = self._asked_at
            if self.ask_at > now:  # else there is another question to ask
                self.ask_at = self._asked_at + self.timing.ask_end
        before, state = self.announced, event.state
        if before is Origin.REQUEUE:  # Slurm no longer knows when such a job ends
            return []
        if state is JobState.OVER:  # it was cancelled before its announced end
            self.announced = None
            return []
        left = math.inf if event.endless else event.left
        if left is None:
            return []
        origin = ANNOUNCED_BY.get(state)
        if before is Origin.PREEMPTION and origin in (None, Origin.TIME_LIMIT):
            return []  # Slurm never withdraws a preemption: it has not answered this time
        if abs(now + left - self.at) >= MOVED:  # False for nan: there is still no end
            self._learned_at = now
        self.at = now + left
        if origin is Origin.TIME_LIMIT and not self._announces_limit(left):
            return []
        if origin in (None, before):
            return []
        self.announced = origin
        return [Record(EndAnnounced(state, left))]

    def _announces_limit(self, left: float) -> bool:
        """Return whether SIGTERM is a warning of the time limit, as with `--signal=TERM@300`.

        It is taken for one if the user wants another run after the time limit, the limit is near,
        and Slurm has said that the job runs: so it is neither cancelled nor preempted.
        """
        is_wanted = EndKind.TIME_LIMIT in self.job.requeueing.on
        is_near = left <= self.timing.announced
        return is_wanted and is_near and self._warned is not None and not self.waits_for_slurm

    @property
    def comes_later(self) -> bool:
        """Whether SIGTERM has announced an end that comes later."""
        return self.announced is not None

    @property
    def origin(self) -> Origin:
        """The origin of the end at `at`."""
        return self.announced or Origin.TIME_LIMIT

    # The SIGTERM

    @property
    def waits_for_slurm(self) -> bool:
        """Whether Slurm has yet to say what its SIGTERM means. Agents obey it after a while."""
        return self._warned is not None and self._known_at < self.warned_at

    def hear(self, report: Report, now: float) -> None:
        """Ask what a SIGTERM means, if a report is the first to mention one."""
        if report.warned and self._warned is None:
            self._warned = (report.warned, report.host)
            self.warned_at = self.ask_at = now

    def ask_again(self, now: float) -> None:
        """Ask what another SIGTERM means: the job may have been cancelled since the first one."""
        if self.comes_later:
            self.warned_at = self.ask_at = now

    def verdict_of_warning(self) -> Verdict | None:
        """Return how the job ends if SIGTERM ends it now; None if it does not, as far as known."""
        if self._warned is None or self.comes_later or self.waits_for_slurm:
            return None
        signum, host = self._warned
        return verdict(Origin.SIGTERM, f"ended by {signal_name(signum)} on {host}", signum=signum)

    def explained_by(self, ended: Verdict) -> float:
        """Return until when to wait for Slurm's explanation, if agents have stopped their workers
        because of a SIGTERM; -inf if nothing needs one.
        """
        is_open = ended.origin is Origin.SIGTERM and self.waits_for_slurm
        return self.warned_at + self.timing.search if is_open else -math.inf

    def explain(self, ended: Verdict) -> Verdict:
        """Replace Origin.SIGTERM by the origin that it stands for, according to Slurm."""
        if ended.origin is not Origin.SIGTERM:
            return ended
        return replace(ended, origin=self.announced or Origin.SIGNAL)
