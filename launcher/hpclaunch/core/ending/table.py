"""The ways in which a job may end, and their consequences: one row for each origin of an end.

Whatever depends on the origin is looked up here: whether the workers' last save counts, the exit
code, the names that users know the end by, and whether another run may follow. `job_end.py` applies
the rows. docs/ending.md shows them to users.
"""

from __future__ import annotations

import signal
from enum import Enum

from ..protocol.facts import EndReason
from ..protocol.job_state import JobState
from ..protocol.model import (
    EXIT_LOST,
    EXIT_SAVED,
    EXIT_USAGE,
    EndCause,
    EndKind,
    Failure,
    Origin,
    Verdict,
)
from ..protocol.values import value


class Code(Enum):
    """An exit code that depends on more than the origin."""

    FAILURE = "that of the failure"
    SIGNAL = "128 and the signal"
    LAST_SAVE = "75 or 143"  # whether a checkpoint was saved since the workers were asked to leave


class NextRun(Enum):
    """The cases in which Slurm starts the job again, or the next element of its array."""

    NEVER = "never"
    WANTED = "with --requeue-on"  # if it names the kind of the end
    WANTED_OR_KILLED = "with --requeue-on, or by Slurm itself"  # if it kills the job


@value(frozen=True)
class Row:
    """The consequences of an origin."""

    code: int | Code | None  # None: the job continues in another round, and there is no verdict
    next_run: NextRun = NextRun.NEVER
    kind: EndKind = EndKind.STOPPED  # as options and notifications name it
    cause: EndCause = EndCause.OTHER  # as reports name it, if no worker has failed
    state: JobState | None = None  # the job's state in Slurm that announces this end
    moment: str = ""  # when Slurm ends the job, in messages
    reason: EndReason | None = None  # why a round ends for it; None: only because the job does


ENDS = {
    Origin.DONE: Row(
        code=0,
        kind=EndKind.FINISHED,
        cause=EndCause.DONE,
    ),
    Origin.TIME_LIMIT: Row(
        code=Code.LAST_SAVE,
        next_run=NextRun.WANTED,
        kind=EndKind.TIME_LIMIT,
        cause=EndCause.TIME_LIMIT,
        state=JobState.RUNNING,
        moment="the time limit",
        reason=EndReason.TIME,
    ),
    Origin.PREEMPTION: Row(
        code=Code.LAST_SAVE,
        next_run=NextRun.WANTED_OR_KILLED,
        kind=EndKind.PREEMPTION,
        cause=EndCause.PREEMPTED,
        state=JobState.PREEMPTED,
        moment="its preemption",
        reason=EndReason.PREEMPTION,
    ),
    Origin.REQUEUE: Row(
        code=Code.LAST_SAVE,
        next_run=NextRun.WANTED_OR_KILLED,
        kind=EndKind.PREEMPTION,
        cause=EndCause.REQUEUED,
        state=JobState.REQUEUED,
        moment="Slurm requeues it",
        reason=EndReason.REQUEUE,
    ),
    Origin.NOTICE: Row(
        code=EXIT_SAVED,  # workers that have saved nothing count as done
        next_run=NextRun.WANTED,
        kind=EndKind.TIME_LIMIT,
        cause=EndCause.NOTICE,
    ),
    Origin.DRAIN: Row(code=None),
    Origin.NODE_LOST: Row(
        code=EXIT_LOST,
        next_run=NextRun.WANTED,
        kind=EndKind.NODE_FAILURE,
        cause=EndCause.LOST,
    ),
    Origin.NODE_UNFIT: Row(
        code=EXIT_LOST,
        next_run=NextRun.WANTED,
        kind=EndKind.NODE_FAILURE,
        cause=EndCause.UNFIT,
    ),
    Origin.FAILURE: Row(
        code=Code.FAILURE,
        next_run=NextRun.WANTED,
        kind=EndKind.FAILURE,
    ),
    Origin.STOP: Row(code=Code.SIGNAL, cause=EndCause.USER),
    Origin.SIGNAL: Row(code=Code.SIGNAL, cause=EndCause.USER),
    Origin.SIGTERM: Row(code=Code.SIGNAL, cause=EndCause.USER),
    Origin.HEAD_LOST: Row(code=EXIT_LOST, cause=EndCause.LOST),
    Origin.ABSENT: Row(code=EXIT_LOST),
    Origin.USAGE: Row(code=EXIT_USAGE, cause=EndCause.USAGE),
    Origin.TROUBLE: Row(code=EXIT_LOST),
}
# The kinds after which a user may want another run.
REQUEUEABLE = tuple(
    dict.fromkeys(row.kind for row in ENDS.values() if row.next_run is not NextRun.NEVER)
)


def verdict(
    origin: Origin,
    reason: str,
    *,
    saved: bool = False,
    signum: int = signal.SIGTERM,
    failure: Failure | None = None,
    consequences: tuple[Failure, ...] = (),
) -> Verdict:
    """Return the verdict on a job with the exit code of its row. `saved`: a checkpoint was saved
    since the workers were asked to leave.
    """
    row = ENDS[origin]
    match row.code:
        case Code.FAILURE:
            assert failure is not None, "there is no failure without a process that failed"
            code = failure.code
        case Code.SIGNAL:
            code = 128 + signum
        case Code.LAST_SAVE:
            code = EXIT_SAVED if saved else 128 + signal.SIGTERM
        case int():
            code = row.code
        case None:
            raise AssertionError(f"{origin.value}: the job continues")
    return Verdict(
        code,
        reason,
        origin,
        cause=failure,
        consequences=consequences,
        signum=signum,
    )
