"""Asks Slurm when it will end the job. Only the leading agent does."""

from __future__ import annotations

import time
from functools import partial

from ..core.protocol import effects, events
from ..core.protocol.job_state import JobState
from ..system.hosts import slurm
from ..system.shared.errands import Answer, FindJobEnd, JobEndFound
from .adapter import Adapter, Performs
from .context import Context


class EndWatch(Adapter):
    """Asks one question at a time. The event EndFound has the answer."""

    def __init__(self, context: Context) -> None:
        self._errands = context.errands
        job, environ = context.config.job, context.environ
        in_step = slurm.in_step(environ)
        has_spares = 0 < job.most < job.nodes
        self._question = FindJobEnd(
            job=job.slurm_id,
            step=f"{job.slurm_id}.{environ['SLURM_STEP_ID']}" if in_step else "",
            end=environ.get("SLURM_JOB_END_TIME", ""),
            restarts=environ.get("SLURM_RESTART_COUNT", ""),
            nodes=environ.get("SLURM_STEP_NODELIST", "") if has_spares else "",
            since=time.time(),
        )
        self._number = 0  # of the newest question
        self._waits = False  # for an answer; newer questions are asked after it, as one
        self._last: JobEndFound | None = None
        self.began: float | None = None  # the start of the job, in seconds since 1970, if known

    def performs(self) -> Performs:
        return {effects.AskForEnd: lambda effect: self.ask(effect.number)}

    def ask(self, number: int) -> None:
        """Ask Slurm. The event EndFound follows later."""
        self._number = number
        if not self._waits:
            self._begin()

    def _begin(self) -> None:
        self._waits = True
        question = self._question.replaced(before=self._last)
        self._errands.run(question, partial(self._found, self._number))

    def _found(self, number: int, answer: Answer | None) -> list[events.Event]:
        self._waits = False
        if isinstance(answer, JobEndFound):
            self._last = answer
            self.began = self.began or answer.began
        if number != self._number:
            self._begin()
        if not isinstance(answer, JobEndFound):
            draining = () if self._last is None else self._last.draining
            return [events.EndFound(None, draining=draining, number=number)]
        event = events.EndFound(
            left=answer.left,
            state=JobState(answer.state),
            may_requeue=answer.may_requeue,
            requeued_if_killed=answer.requeued_if_killed,
            draining=answer.draining,
            endless=answer.endless,
            number=number,
        )
        return [event]
