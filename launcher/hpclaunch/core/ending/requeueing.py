"""The decision whether another run follows the end of the job: Slurm starts it again, or the next
element of its array.

A run that is known to have made no progress is the last, unless it is the first. In any case,
`--max-requeues` or the length of the array limits the runs.
"""

from __future__ import annotations

from ..protocol.effects import Effect, Record
from ..protocol.events import EndFound
from ..protocol.facts import RequeueImpossible
from ..protocol.job_state import JobState
from ..protocol.model import EXIT_FAILED, EXIT_SAVED, Job, Origin, Sequel, Verdict
from ..protocol.values import replace
from ..protocol.wording import count
from .table import ENDS, NextRun

STOPPED_BY = "hpclaunch stop"


class RequeueDecision:
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
        if is_wanted and not why_not:
            ended = replace(ended, code=EXIT_SAVED)
            if not wanted.is_chain:
                return replace(ended, sequel=Sequel.REQUEUE)
        elif wanted.on and ended.code == EXIT_SAVED:
            ended = replace(ended, code=EXIT_FAILED)  # that code asks for another run
        if why_not:
            reason = f"{ended.reason}; it is not started again: {why_not}"
            return replace(ended, reason=reason, sequel=self._last)
        if self._is_requeued_if_killed(ended.origin):
            return replace(ended, sequel=Sequel.LINGER, left=round(left, 3))
        return ended if is_wanted else replace(ended, sequel=self._last)

    @property
    def _last(self) -> Sequel:
        return Sequel.END_CHAIN if self.wanted.is_chain else Sequel.LEAVE

    def _objection(self, progress: bool | None) -> str:
        """Return why the job itself allows no other run; "" if it does."""
        wanted = self.wanted
        if not wanted.is_chain and wanted.before >= wanted.most:
            return f"it was requeued {count(wanted.before, 'time')} (--max-requeues)"
        if wanted.before and progress is False:
            return "this run saved no checkpoint that is further than that of the run before"
        return ""
