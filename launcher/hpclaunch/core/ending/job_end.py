"""The end of the job: what ends it, what Slurm says of its SIGTERM, the checkpoint that was saved
last, and whether another run follows. What follows from each origin is in `table.py`.

The end goes one way:

    nothing ends the job -> there is a verdict -> no worker is left -> Slurm has explained its
    SIGTERM -> the last save is known -> the verdict is final, with its exit code and its sequel

A stage calls `check` while workers run or a round is to begin, `workers_done` or `workers_failed`
once they have ended, and `advance` once there is a verdict and no worker is left.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator

from ..protocol.effects import ChooseCheckpoint, Effect
from ..protocol.events import CheckpointChosen, EndFound
from ..protocol.messages import Report
from ..protocol.model import Job, Origin, Verdict
from ..protocol.wording import count, signal_name
from .allocation_end import AllocationEnd
from .last_save import LastSave
from .leaving import Leaving
from .notices import Notices
from .requeueing import STOPPED_BY, RequeueDecision
from .table import ENDS, verdict


class JobEnd:
    def __init__(
        self,
        job: Job,
        notices: Notices,
        allocation: AllocationEnd,
        numbers: Iterator[int],
        is_progress: Callable[[CheckpointChosen], bool],
    ) -> None:
        """`numbers` are those of the head's questions. `is_progress`: whether a checkpoint is
        further than the one that the first round began with.
        """
        self.job, self.allocation = job, allocation
        self._numbers, self._is_progress = numbers, is_progress
        self.verdict: Verdict | None = None
        self.last_save = LastSave(job, numbers)
        self._leaving = Leaving(job, notices, allocation)
        self._requeue = RequeueDecision(job)
        self._is_out_of_time = False  # the workers are ended before Slurm ends the job
        self._explained_by = math.inf  # when the wait for Slurm's explanation ends
        self._is_final = False  # the verdict has its exit code and its sequel

    def round_ended(self) -> None:
        """The job goes on after a round."""
        self.last_save = LastSave(self.job, self._numbers)

    @property
    def is_waiting(self) -> bool:
        """Whether the job is about to end, or to go on, once something is known."""
        return self.last_save.is_open or self._explained_by < math.inf

    def next_deadline(self) -> float:
        return min(self.last_save.until, self._explained_by)

    def found(self, event: EndFound) -> list[Effect]:
        """Note what Slurm says of another run."""
        return self._requeue.found(event)

    # What ends the job

    def note(self, found: Verdict | None) -> None:
        """End the job with this verdict, unless it is None or the job is about to end already."""
        self.verdict = self.verdict or found

    @property
    def accepts_stop(self) -> bool:
        """Whether a user's stop still makes a difference: nothing ends the job, or another run may
        follow.
        """
        if self.verdict is None:
            return True
        if self._is_final:
            return False
        is_unexplained = self.verdict.origin is Origin.SIGTERM and self.allocation.waits_for_slurm
        return is_unexplained or self._requeue.may_follow(self._origin(self.verdict))

    def _origin(self, ended: Verdict) -> Origin:
        """Return where the end comes from, as far as Slurm has said."""
        # Slurm may have announced another end since the time was up.
        explained = self.allocation.explain(ended).origin
        return self.allocation.origin if self._is_out_of_time else explained

    def stop(self, restarts: int) -> None:
        """End the job because its user wants that, if `accepts_stop`. No other run follows, also
        if it ends already: then for the reason that it has.
        """
        assert self.accepts_stop, "a stop that makes no difference is refused"
        self._requeue.is_stopped = True
        self.note(verdict(Origin.STOP, f"ended by {STOPPED_BY}", restarts=restarts))

    def hear(self, report: Report, now: float, restarts: int) -> None:
        """End the job if an agent is in trouble, or has received a signal."""
        self.allocation.hear(report, now)
        if self.verdict is not None:
            return
        if report.trouble is not None:
            trouble = report.trouble
            self.verdict = verdict(trouble.origin, trouble.reason, restarts=restarts)
        elif signum := report.stop_signal:
            origin = Origin.SIGTERM if signum == signal.SIGTERM else Origin.SIGNAL
            reason = f"ended by {signal_name(signum)} on {report.host}"
            self.verdict = verdict(origin, reason, signum=signum, restarts=restarts)
            if origin is Origin.SIGTERM:
                self.allocation.ask_again(now)

    def check(self, now: float, restarts: int) -> None:
        """End the job if Slurm's SIGTERM means that, or if its time is up."""
        if self.verdict is not None:
            return
        self.verdict = self.allocation.verdict_of_warning(restarts)
        if self.verdict is None and self.allocation.is_over(now):
            self._is_out_of_time = True
            self.verdict = self._verdict_in_time(None, now, restarts)

    # All workers have ended

    def seek_save(self, search: ChooseCheckpoint, now: float) -> list[Effect] | None:
        """Find out what workers that have ended with 0 have saved, if `why_done` depends on it.
        Returns None once there is nothing to wait for.
        """
        # A search takes time, in which what they have done does not change.
        if not (self.last_save.has_begun or self._leaving.is_possible(now)):
            return None
        return self.last_save.search(search, now, ended_well=True)

    def why_done(self, now: float, *, drains: bool) -> Origin:
        """Return why all workers have ended with 0. They may be finished if they have saved nothing
        since they were asked to leave. `drains`: they were asked to because Slurm drains a node.
        """
        if not self.last_save.has_begun:
            return Origin.DONE
        has_saved = self._leaving.has_saved(self.last_save.found, now)
        unfinished = has_saved or self._leaving.is_certain
        return self._leaving.origin(drains=drains) if unfinished else Origin.DONE

    def conclude(self, origin: Origin, now: float, restarts: int) -> None:
        """End the job, since all workers have ended: with 0, or after they have saved."""
        saved = self.last_save.found
        if origin is Origin.DONE:
            again = f" after {count(restarts, 'restart')}" if restarts else ""
            reason, has_saved = f"all workers ended with 0{again}", False
        else:
            has_saved = self._leaving.has_saved(saved, now)
            reason = f"not finished: the workers left after {self._leaving.account}"
            if saved is not None and has_saved:
                reason = f"saved, {reason}, with {saved.path}"
            else:
                reason += ", and nothing was saved since"
        self.verdict = verdict(origin, reason, saved=has_saved, restarts=restarts)

    def workers_failed(
        self, search: ChooseCheckpoint, now: float, restarts: int
    ) -> list[Effect] | None:
        """End the job if workers that have failed had notice of the end, and have saved since.
        Returns None once it is known whether they have.
        """
        if self.verdict is not None or not self._leaving.may_have_saved:
            return None
        searched = self.last_save.search(search, now)
        if searched is None and self._leaving.has_saved(self.last_save.found, now):
            self.conclude(self.allocation.origin, now, restarts)
        return searched

    # The job ends, and no worker is left

    def advance(self, search: ChooseCheckpoint, now: float) -> list[Effect] | None:
        """Find out what the verdict depends on. Returns None once it is final."""
        assert self.verdict is not None, "a job ends with a verdict"
        until = self.allocation.explained_by(self.verdict)
        self._explained_by = until if now < until else math.inf
        if now < until:
            return []
        ended = self.allocation.explain(self.verdict)
        depends = self._requeue.depends_on_progress(self._origin(ended))
        if self._is_out_of_time or depends:
            searched = self.last_save.search(search, now)
            if searched is not None:
                return searched
        saved = self.last_save.found
        if self._is_out_of_time:
            ended = self._verdict_in_time(saved, now, ended.restarts)
        progress = depends and (saved is None or self._is_progress(saved))
        left = self.allocation.left(now) or 0.0
        self.verdict = self._requeue.decide(ended, left, progress=progress)
        self._is_final = True
        return None

    def _verdict_in_time(
        self, saved: CheckpointChosen | None, now: float, restarts: int
    ) -> Verdict:
        """Return how the job ends before Slurm ends it."""
        leaving, origin = self._leaving, self.allocation.origin
        seconds = max(0.0, self.allocation.at - now)
        reason = f"ended {seconds:.0f} s before {ENDS[origin].moment}"
        has_saved = leaving.has_saved(saved, now)
        if saved is not None and has_saved:
            reason = f"saved, not finished: {reason}, with {saved.path}"
        elif leaving.has_had_notice and self.job.saves:
            reason += f"; nothing was saved after the notice{leaving.where}"
        return verdict(origin, reason, saved=has_saved, restarts=restarts)
