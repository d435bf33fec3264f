"""When Slurm ends the job, as far as it has said so, and what its SIGTERM means."""

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

ANNOUNCED_BY = {row.state: origin for origin, row in ENDS.items() if row.state is not None}


class AllocationEnd:
    def __init__(self, job: Job, numbers: Iterator[int]) -> None:
        """`numbers` are those of the head's questions."""
        self.job, self.timing, self._numbers = job, job.timing, numbers
        self._question = 0  # the number of the last one
        self.announced: Origin | None = None  # the end that SIGTERM has announced
        self.at = math.inf  # when Slurm ends the job
        self.ask_at = math.inf  # when to ask Slurm
        self._asked_at = -math.inf
        self._known_at = -math.inf  # when the question was asked that was answered last
        self._warned: tuple[int, str] | None = None  # the signal, and the host of the first agent
        self.warned_at = math.inf

    def begin_to_ask(self, now: float) -> None:
        """This agent begins to lead."""
        self.ask_at = now if self.job.may_end else math.inf

    @property
    def stop_at(self) -> float:
        """When to end the workers, so that they are gone before Slurm kills them, and it is known
        what comes next.
        """
        return self.at - self.timing.grace - self.timing.closing

    def is_over(self, now: float) -> bool:
        return now >= self.stop_at

    def left(self, now: float) -> float | None:
        """Seconds until Slurm ends the job; None if that is not known."""
        return None if self.at == math.inf else max(0.0, self.at - now)

    # What Slurm is asked, and answers

    def ask(self, now: float) -> list[Effect]:
        if now < self.ask_at:
            return []
        self._asked_at = now
        self.ask_at = now + self.timing.ask_again
        self._question = next(self._numbers)
        return [AskForEnd(self._question)]

    def ask_again(self, now: float) -> None:
        """Ask what another SIGTERM means: the job may have been cancelled since the first one."""
        if self.comes_later:
            self.warned_at = self.ask_at = now

    def explained_by(self, ended: Verdict) -> float:
        """Return until when Slurm is to say what its SIGTERM means, if agents have ended their
        workers because of it; -inf if nothing is to be explained.
        """
        is_open = ended.origin is Origin.SIGTERM and self.waits_for_slurm
        return self.warned_at + self.timing.search if is_open else -math.inf

    def explain(self, ended: Verdict) -> Verdict:
        """Replace Origin.SIGTERM by the origin that it stands for, according to Slurm."""
        if ended.origin is not Origin.SIGTERM:
            return ended
        return replace(ended, origin=self.announced or Origin.SIGNAL)

    def found(self, event: EndFound, now: float) -> list[Effect]:
        if event.number == self._question:  # else it is late
            self._known_at = self._asked_at
            if self.ask_at > now:  # else it is to be asked anew
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
            return []  # Slurm, which takes nothing back, has not answered this time
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
    def is_preempted(self) -> bool:
        return self.announced is Origin.PREEMPTION

    @property
    def comes_later(self) -> bool:
        """Whether SIGTERM has announced an end that comes later."""
        return self.announced is not None

    @property
    def waits_for_slurm(self) -> bool:
        """Whether Slurm has yet to say what its SIGTERM means. After a while, agents heed it."""
        return self._warned is not None and self._known_at < self.warned_at

    @property
    def origin(self) -> Origin:
        return self.announced or Origin.TIME_LIMIT

    # The SIGTERM

    def hear(self, report: Report, now: float) -> None:
        """Take in what a report says of a SIGTERM."""
        if report.warned and self._warned is None:
            self._warned = (report.warned, report.host)
            self.warned_at = self.ask_at = now

    def verdict_of_warning(self, restarts: int) -> Verdict | None:
        """Return how the job ends if SIGTERM does not mean an end that comes later; None if it
        does, or Slurm has yet to say so.
        """
        if self._warned is None or self.comes_later or self.waits_for_slurm:
            return None
        signum, host = self._warned
        reason = f"ended by {signal_name(signum)} on {host}"
        return verdict(Origin.SIGTERM, reason, signum=signum, restarts=restarts)
