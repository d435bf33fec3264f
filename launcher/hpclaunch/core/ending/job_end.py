"""The end of the job as one state machine. `table.py` says what follows from each cause.

    nothing ends the job -> there is a verdict -> no worker is left -> Slurm has explained its
    SIGTERM -> the last save is known -> what was saved in memory is on storage -> the verdict is
    final, with its exit code and its sequel

A stage calls `check` while workers run or a round is about to begin. Once the workers have ended,
it calls `seek_save`, `why_done` and `conclude` if they were done, and `workers_failed` if they were
not. With a verdict and no worker left, it calls `advance` until the verdict is final.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from typing import Protocol

from ..protocol.effects import ChooseCheckpoint, Effect, FlushStage, Record
from ..protocol.events import CheckpointChosen, EndFound, SearchFailed, StageFlushed
from ..protocol.facts import RequeueImpossible
from ..protocol.job_state import JobState
from ..protocol.messages import Report
from ..protocol.model import EXIT_FAILED, EXIT_SAVED, Job, Origin, Sequel, Verdict
from ..protocol.values import replace
from ..protocol.wording import count, signal_name, some
from .allocation_end import AllocationEnd
from .notices import WAVE, Notices
from .table import ENDS, NextRun, verdict

STOPPED_BY = "hpclaunch stop"


class Training(Protocol):
    """The training so far, as far as the end of the job depends on it (`Budget` in core/head)."""

    @property
    def total(self) -> int: ...

    @property
    def search(self) -> ChooseCheckpoint: ...

    def is_beyond_first(self, found: CheckpointChosen) -> bool: ...


class JobEnd:
    def __init__(self, job: Job, training: Training, numbers: Iterator[int]) -> None:
        self.job, self._training, self._numbers = job, training, numbers
        self.verdict: Verdict | None = None
        self.allocation = AllocationEnd(job, numbers)
        self.notices = Notices(job, self.allocation)
        self._saved: CheckpointChosen | None = None  # the last one in this round; None: not known
        self._search = 0  # the number of the search for it, of which there is one; 0: none yet
        self._search_until = math.inf  # the end of the wait for its answer
        self._requeue = RequeueDecision(job)
        self._is_out_of_time = False  # the workers are stopped before Slurm ends the job
        self._explained_by = math.inf  # the end of the wait for Slurm's explanation
        self._signalled_at = math.inf  # when a signal has ended the job
        self._flush = 0  # the number of the FlushStage; 0: none was asked for yet
        self._flushed: StageFlushed | None = None
        self.is_final = False  # the verdict has its exit code and its sequel

    def round_ended(self) -> None:
        """Forget what the workers of the last round have saved: the job continues."""
        self._saved, self._search, self._search_until = None, 0, math.inf

    @property
    def is_waiting(self) -> bool:
        """Whether the end of the job depends on an answer that has not arrived yet."""
        return self.next_deadline() < math.inf or self.is_flushing

    @property
    def is_flushing(self) -> bool:
        """Whether the job waits until what was saved in memory is on storage."""
        return self._flush > 0 and self._flushed is None

    def next_deadline(self) -> float:
        return min(self._search_until, self._explained_by)

    # What ends the job

    def note(self, found: Verdict | None) -> None:
        """End the job with this verdict, unless it is None or there is a verdict already."""
        self.verdict = self.verdict or found

    def end_found(self, event: EndFound, now: float) -> list[Effect]:
        """Note what Slurm says of the end of the job, and of another run."""
        effects = self.allocation.found(event, now) + self._requeue.found(event)
        self.notices.end_found()
        return effects

    @property
    def accepts_stop(self) -> bool:
        """Whether a user's stop still makes a difference: nothing ends the job, or another run may
        follow.
        """
        if self.verdict is None:
            return True
        if self.is_final:
            return False
        is_unexplained = self.verdict.origin is Origin.SIGTERM and self.allocation.waits_for_slurm
        return is_unexplained or self._requeue.may_follow(self._origin(self.verdict))

    def _origin(self, ended: Verdict) -> Origin:
        """Return where the end comes from, as far as Slurm has said. If the time was up, Slurm may
        have announced another end since.
        """
        if self._is_out_of_time:
            return self.allocation.origin
        return self.allocation.explain(ended).origin

    def stop(self) -> None:
        """End the job at its user's request, if `accepts_stop`. No other run follows. If the job is
        about to end already, the reason stays the same.
        """
        assert self.accepts_stop, "a stop that makes no difference is refused"
        self._requeue.is_stopped = True
        self.note(verdict(Origin.STOP, f"ended by {STOPPED_BY}"))

    def hear(self, report: Report, now: float) -> None:
        """End the job if an agent is in trouble, or has received a signal."""
        self.allocation.hear(report, now)
        if self.verdict is not None:
            return
        if report.trouble is not None:
            self.verdict = verdict(report.trouble.origin, report.trouble.reason)
        elif signum := report.stop_signal:
            origin = Origin.SIGTERM if signum == signal.SIGTERM else Origin.SIGNAL
            reason = f"ended by {signal_name(signum)} on {report.host}"
            self.verdict = verdict(origin, reason, signum=signum)
            self._signalled_at = now
            if origin is Origin.SIGTERM:
                self.allocation.ask_again(now)

    def check(self, now: float) -> None:
        """End the job if Slurm's SIGTERM means that, or if its time is up."""
        if self.verdict is not None:
            return
        self.verdict = self.allocation.verdict_of_warning()
        if self.verdict is None and self.allocation.is_over(now):
            self._is_out_of_time = True
            self.verdict = self._verdict_in_time(now)

    # All workers have ended

    def hear_search(self, event: CheckpointChosen | SearchFailed) -> None:
        """Note the answer to a search for a checkpoint, if that search was begun here."""
        if self._search_until < math.inf and event.number == self._search:
            self._saved = event if isinstance(event, CheckpointChosen) else None
            self._search_until = math.inf

    def hear_flush(self, event: StageFlushed) -> None:
        """Note that what was saved in memory is on storage, or lost."""
        if event.number == self._flush:
            self._flushed = event

    def seek_save(self, now: float) -> list[Effect] | None:
        """Find out what workers that have ended with 0 have saved, if `why_done` depends on it.
        Return None once there is nothing to wait for.
        """
        # Once the search has begun, its answer counts, although `may_have_left` changes with time.
        if not (self._search or self.notices.may_have_left(now)):
            return None
        return self._search_last(now, ended_well=True)

    def _search_last(self, now: float, *, ended_well: bool = False) -> list[Effect] | None:
        """Begin the search for the last save, or wait for its answer. Return None once there is
        nothing to wait for. `ended_well`: all workers have ended with 0, and were not stopped.
        """
        if self.job.saves and not self._search:
            self._search = next(self._numbers)
            self._search_until = now + self.job.timing.search
            search = self._training.search
            return [replace(search, is_last=True, ended_well=ended_well, number=self._search)]
        if now < self._search_until < math.inf:
            return []
        self._search_until = math.inf
        return None

    def _saved_since(self, since: float, now: float) -> str:
        """Return the path of the last save if it was made since then; "" if it was not."""
        saved = self._saved
        if saved is None or saved.age is None:
            return ""
        return saved.path if saved.age <= now - since + WAVE else ""

    def why_done(self, now: float, *, drains: bool) -> Origin:
        """Return why all workers have ended with 0. They left if they have saved since they were
        asked to leave, or `have_left` in any case; else they were done. `drains`: Slurm drains a
        node.
        """
        notices = self.notices
        if self._search and (self._saved_since(notices.asked_at, now) or notices.have_left):
            return notices.origin(drains=drains)
        return Origin.DONE

    def conclude(self, origin: Origin, now: float) -> None:
        """End the job because all workers have ended: with 0, or after they have saved."""
        saved = ""
        if origin is Origin.DONE:
            restarts = self._training.total
            reason = "all workers ended with 0"
            reason += f" after {count(restarts, 'restart')}" if restarts else ""
        else:
            saved = self._saved_since(self.notices.asked_at, now)
            reason = f"not finished: the workers left after {self.notices.request}"
            nothing = f"{reason}, and nothing was saved since"
            reason = f"saved, {reason}, with {saved}" if saved else nothing
        self.verdict = verdict(origin, reason, saved=bool(saved))

    def workers_failed(self, now: float) -> list[Effect] | None:
        """End the job if workers that have failed had notice of the end, and have saved since.
        Return None once that is known.
        """
        if self.verdict is not None or not self.notices.may_have_saved:
            return None
        searched = self._search_last(now)
        if searched is None and self._saved_since(self.notices.asked_at, now):
            self.conclude(self.allocation.origin, now)
        return searched

    # The job ends, and no worker is left

    def advance(self, now: float) -> list[Effect] | None:
        """Find out what the verdict depends on. Return None once it is final."""
        assert self.verdict is not None, "a job ends with a verdict"
        until = self.allocation.explained_by(self.verdict)
        self._explained_by = until if now < until else math.inf
        if now < until:
            return []
        ended = self.allocation.explain(self.verdict)
        depends = self._requeue.depends_on_progress(self._origin(ended))
        if self._is_out_of_time or depends:
            searched = self._search_last(now)
            if searched is not None:
                return searched
        if self._is_out_of_time:
            ended = self._verdict_in_time(now)
        if self.job.stages and not self._flush:
            self._flush = next(self._numbers)
            return [FlushStage(self._flush_until(ended), self._flush)]
        if self._flushed is not None:
            ended = _after_flush(ended, self._flushed)
        elif self._flush:
            return []
        ended = replace(ended, restarts=self._training.total)
        saved = self._saved
        is_lost = self._flushed is not None and self._flushed.loses_checkpoint
        progress = None if saved is None else not is_lost and self._training.is_beyond_first(saved)
        left = self.allocation.left(now) or 0.0
        self.verdict = self._requeue.decide(ended, left, progress=progress)
        self.is_final = True
        return None

    def _flush_until(self, ended: Verdict) -> float:
        """Return until when to wait for the copies from memory: Slurm ends the job after that."""
        until = self.allocation.at - self.job.timing.closing
        if ended.origin is not Origin.SIGNAL or ended.signum != signal.SIGTERM:
            return until
        if not self.job.slurm_id:  # nobody is known to kill this process later
            return until
        signalled_at = min(self._signalled_at, self.allocation.warned_at)
        return min(until, signalled_at + self.job.timing.grace + self.job.timing.flush)

    def _verdict_in_time(self, now: float) -> Verdict:
        """Return how the job ends before Slurm ends it."""
        notices, origin = self.notices, self.allocation.origin
        saved = self._saved_since(notices.warned_at, now)
        seconds = max(0.0, self.allocation.at - now)
        reason = f"ended {seconds:.0f} s before {ENDS[origin].moment}"
        if saved:
            reason = f"saved, not finished: {reason}, with {saved}"
        elif notices.knows_end and notices.given is not None and self.job.saves:
            reason += f"; nothing was saved after the notice{notices.given.where}"
        return verdict(origin, reason, saved=bool(saved))


def _after_flush(ended: Verdict, flushed: StageFlushed) -> Verdict:
    """Return the verdict once what was saved in memory is on storage. If something was lost, the
    job has not succeeded; if it was to continue, a last save that was lost does not count.
    """
    if not flushed.lost:
        return ended
    lost = f"{some(flushed.lost, 1)} did not reach storage"
    if ended.origin is Origin.DONE:
        return verdict(Origin.TROUBLE, f"{ended.reason}, but {lost}")
    if ended.code == EXIT_SAVED and flushed.loses_checkpoint:
        reason = f"not finished, and the last save is lost: {lost}"
        return replace(ended, code=128 + signal.SIGTERM, reason=reason)
    return ended


class RequeueDecision:
    """The decision whether another run follows: Slurm starts the job again, or the next element of
    its array.

    A run that is known to have made no progress is the last, unless it is the first. In any case,
    `--max-requeues` or the length of the array limits the runs.
    """

    def __init__(self, job: Job) -> None:
        self.job, self.wanted = job, job.requeueing
        self.is_stopped = False  # by its user
        self._has_recorded = False
        self._requeued_if_killed = False  # Slurm requeues the preempted job when it kills it

    def found(self, event: EndFound) -> list[Effect]:
        """Note what Slurm has answered, and record at once if it will not start the job again."""
        if event.state is JobState.PREEMPTED:  # any other state may mean that Slurm did not answer
            self._requeued_if_killed = event.requeued_if_killed
        asked = self.wanted.on and not self.wanted.is_chain
        if self._has_recorded or event.may_requeue is not False or not asked:
            return []
        self._has_recorded = True
        return [Record(RequeueImpossible(self.job.slurm_id))]

    def _is_wanted(self, origin: Origin) -> bool:
        """Return whether the user wants another run after such an end."""
        row = ENDS[origin]
        return row.next_run is not NextRun.NEVER and row.kind in self.wanted.on

    def may_follow(self, origin: Origin) -> bool:
        """Return whether the user wants another run after such an end, or Slurm starts one."""
        return self._is_wanted(origin) or self._is_requeued_if_killed(origin)

    def _is_requeued_if_killed(self, origin: Origin) -> bool:
        return self._requeued_if_killed and ENDS[origin].next_run is NextRun.WANTED_OR_KILLED

    def depends_on_progress(self, origin: Origin) -> bool:
        return self._is_wanted(origin) and self.wanted.before > 0

    def decide(self, ended: Verdict, left: float, *, progress: bool | None) -> Verdict:
        """Add the sequel to a verdict. `left`: seconds until Slurm ends the job. `progress`: this
        run has saved a checkpoint beyond its first one; None if that is not known.
        """
        wanted = self.wanted
        is_wanted = self._is_wanted(ended.origin)
        why_not = self._objection(progress) if is_wanted else ""
        if self.is_stopped and self.may_follow(ended.origin):
            why_not = why_not or STOPPED_BY
        if wanted.on and self.may_follow(ended.origin) and not why_not:
            ended = replace(ended, code=EXIT_SAVED)
        elif wanted.on and ended.code == EXIT_SAVED:
            ended = replace(ended, code=EXIT_FAILED)  # that code asks for another run
        if why_not:
            reason = f"{ended.reason}; it is not started again: {why_not}"
            return replace(ended, reason=reason, sequel=self._last)
        if is_wanted and not wanted.is_chain:
            return replace(ended, sequel=Sequel.REQUEUE)
        if self._is_requeued_if_killed(ended.origin):
            return replace(ended, sequel=Sequel.LINGER, left=round(left, 3))
        return replace(ended, sequel=Sequel.NEXT if is_wanted else self._last)

    @property
    def _last(self) -> Sequel:
        return Sequel.END_CHAIN if self.wanted.is_chain else Sequel.LEAVE

    def _objection(self, progress: bool | None) -> str:
        """Return why the job itself allows no other run; "" if it does."""
        wanted = self.wanted
        if wanted.before >= wanted.most:
            times = f"it was requeued {count(wanted.before, 'time')} (--max-requeues)"
            return "this was the last element of the chain" if wanted.is_chain else times
        if wanted.before and progress is False:
            return "this run saved no checkpoint that is further than that of the run before"
        return ""
