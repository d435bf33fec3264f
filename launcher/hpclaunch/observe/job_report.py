"""The report of a job: its figures and the causes of its failures, made of its launches."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ..core.ending.table import ENDS, Code
from ..core.protocol.facts import RoundEnded
from ..core.protocol.model import (
    EXIT_SAVED,
    NO_RANK,
    Culprit,
    EndCause,
    Failure,
    Origin,
    Verdict,
)
from ..core.protocol.values import value
from .end_causes import Diagnosis, of_job, of_round
from .launches import Launch, account, round_ends

FORMAT = 1
NODE_CAUSES = (EndCause.LOST, EndCause.UNFIT)  # causes for which no worker is at fault


@value(frozen=True)
class EndReport:
    """A round that ended before its workers were done. Times are seconds since the epoch."""

    round: int
    at: float  # when the cause occurred
    seen: float  # when the launcher ended the round
    cause: str
    who: str  # "rank 3 on n2"; "" if no rank is at fault
    text: str
    evidence: tuple[str, ...]
    code: int
    signal: int
    tail: str  # the last lines of the worker that failed first
    consequences: tuple[str, ...]  # the ranks that failed later, in the order of time
    lost: tuple[str, ...]


class JobOutcome(str, Enum):
    DONE = "done"
    UNFINISHED = "not finished"  # another run can continue it
    ENDED = "ended"  # by the user
    FAILED = "failed"


@value(frozen=True)
class JobReport:
    format: int
    launches: tuple[str, ...]
    nodes: tuple[str, ...]
    begin: float
    end: float  # until now, if it is not over
    over: bool
    outcome: JobOutcome | None  # None if it is not known to be over
    code: int | None  # None if that is not known
    reason: str
    cause: str
    restarts: int
    rounds: int
    seats: float
    seat: str  # "GPU", or "worker" without GPUs
    seconds: dict[str, float]  # seat seconds by category
    total: float  # their sum
    goodput: float
    steps_seen: bool  # False: all time after the rendezvous counts as training
    ends: tuple[EndReport, ...]
    ends_left_out: int  # if there are many, `ends` has the first and the last ones


def report(launches: Sequence[Launch]) -> JobReport:
    """Return the report of at least one launch, in the order of time. The last one decides how the
    job ended.
    """
    sums, last = account(launches), launches[-1]
    verdict = last.verdict
    found = Diagnosis(EndCause.OTHER, "") if verdict is None else of_job(verdict)
    return JobReport(
        format=FORMAT,
        launches=tuple(launch.name for launch in launches),
        nodes=last.hosts,
        begin=sums.begin,
        end=sums.end,
        over=verdict is not None,
        outcome=None if verdict is None else outcome(verdict),
        code=None if verdict is None else verdict.code,
        reason="" if verdict is None else verdict.reason,
        cause="" if verdict is None else found.cause.value,
        restarts=sum(launch.restarts for launch in launches),
        rounds=sum(launch.rounds for launch in launches),
        seats=sums.seats,
        seat=last.seat,
        seconds={category.value: seconds for category, seconds in sums.spent.items()},
        total=sums.total,
        goodput=sums.goodput,
        steps_seen=sums.steps_seen,
        ends=tuple(map(end_report, round_ends(launches))),
        ends_left_out=sum(launch.ends_left_out for launch in launches),
    )


def outcome(verdict: Verdict) -> JobOutcome:
    """Return the result of a job that has ended like this."""
    row = ENDS[verdict.origin]
    if verdict.origin is Origin.DONE:
        return JobOutcome.DONE
    # The workers were asked to save and leave.
    if verdict.sequel.is_followed or row.code in (Code.LAST_SAVE, EXIT_SAVED):
        return JobOutcome.UNFINISHED
    return JobOutcome.ENDED if row.cause is EndCause.USER else JobOutcome.FAILED


def end_report(end: RoundEnded) -> EndReport:
    """Return the report of a round that ended early."""
    found = of_round(end)
    by_worker = end.has_failed and found.cause not in NODE_CAUSES
    first = end.failures[0] if by_worker else None
    later = end.failures[1:] if by_worker else end.failures
    return EndReport(
        round=end.round,
        at=end.at,
        seen=end.seen,
        cause=found.cause.value,
        who="" if first is None else _who(first),
        text=found.text,
        evidence=found.evidence,
        code=0 if first is None else first.code,
        signal=0 if first is None else first.signal,
        tail="" if first is None else first.tail,
        consequences=tuple(map(_who, later)),
        lost=tuple(lost.why for lost in end.lost),
    )


def _who(failure: Failure) -> str:
    if failure.culprit is Culprit.STORE:
        return f"the store on {failure.host}"
    if failure.culprit is Culprit.FORK_SERVER:
        return f"the fork server on {failure.host}"
    return "" if failure.rank == NO_RANK else f"rank {failure.rank} on {failure.host}"
