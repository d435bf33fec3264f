"""Diagnoses: the cause for which a round or a job ended, and the lines that show it.

The first failure in time counts, since the later ones only report that a peer is gone.
"""

from __future__ import annotations

import re
import signal

from ..core.ending.table import ENDS
from ..core.head.last_lines import cause_in, names, without_ranks
from ..core.protocol.facts import EndReason, RoundEnded
from ..core.protocol.model import Culprit, EndCause, Failure, Verdict
from ..core.protocol.values import replace, value

MOST_FRAMES = 3  # of a traceback, the innermost
FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
# Only jobs end for these causes, not rounds.
_OF_JOBS = (
    EndCause.NOTICE,
    EndCause.USAGE,
    EndCause.DONE,
)
OF_ROUNDS = tuple(cause for cause in EndCause if cause not in _OF_JOBS)
BY_SLURM = {row.reason: row.cause for row in ENDS.values() if row.reason is not None}
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)


@value(frozen=True)
class Diagnosis:
    cause: EndCause
    text: str  # one line
    evidence: tuple[str, ...] = ()  # further lines


def of_failure(failure: Failure) -> Diagnosis:
    """Return why a worker, the store or a fork server failed."""
    failure = replace(failure, tail=without_ranks(failure.tail))
    cause = _kind(failure)
    lines = [line for line in failure.tail.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    text = next((line for line in reversed(lines) if names(cause, line)), last).strip()
    if cause is EndCause.EXCEPTION and lines:
        text = _exception(failure.tail) or text
    found = FRAME.findall(failure.tail)[-MOST_FRAMES:] if cause is not EndCause.HANG else []
    frames = [f"{file.rpartition('/')[2]}:{line}, {name}" for file, line, name in reversed(found)]
    return Diagnosis(cause, text, tuple(frames))


def _kind(failure: Failure) -> EndCause:
    if failure.culprit is Culprit.HANG:
        return EndCause.HANG
    if failure.signal:
        crashed = failure.signal in CRASHES
        among = (EndCause.MEMORY, EndCause.GPU, EndCause.TIMEOUT)[: 3 if crashed else 1]
        by_signal = EndCause.CRASH if crashed else EndCause.KILLED
        return cause_in(failure.tail, failure.tail, among) or by_signal
    return cause_in(failure.tail, _message(failure.tail)) or EndCause.PROGRAM


def _message(tail: str) -> str:
    """Return what follows the traceback of an exception; without one, the whole text."""
    frames = list(FRAME.finditer(tail))
    if not frames:
        return tail
    lines = tail[frames[-1].end() :].splitlines()
    return "\n".join(line for line in lines if not line.startswith("    "))  # lines of code


def _exception(tail: str) -> str:
    """Return the message of an exception, or the last line. If the first line of the message ends
    with a colon, the line below it belongs to it.
    """
    message = [line.strip() for line in _message(tail).splitlines()]
    lines = [line for line in message if line and not line.startswith("[...")]
    if not FRAME.search(tail):
        return lines[-1]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1]) if lines else ""


def of_round(end: RoundEnded) -> Diagnosis:
    """Return why a round ended. A lost node is the cause unless a worker failed before."""
    reasons = set(end.reasons)
    failed_before = end.has_failed and end.failures[0].at <= end.at
    if reasons & {EndReason.LOSS, EndReason.QUORUM} and not failed_before:
        if not end.lost:
            return Diagnosis(EndCause.LOST, "the head had no quorum")
        lost = end.lost[0]
        return Diagnosis(EndCause.UNFIT if lost.is_unfit else EndCause.LOST, lost.why)
    if end.has_failed:
        return of_failure(end.failures[0])
    if EndReason.GROWTH in reasons:
        return Diagnosis(EndCause.GROWTH, "to continue with more nodes, or other ones")
    if EndReason.ASKED in reasons:
        return Diagnosis(EndCause.USER, "the user has asked for a restart")
    for reason, cause in BY_SLURM.items():
        if reason in reasons:
            return Diagnosis(cause, "Slurm was about to end the job")
    return Diagnosis(EndCause.OTHER, "the job was ended")


def of_job(verdict: Verdict) -> Diagnosis:
    """Return why a job ended."""
    if verdict.cause is not None:
        found = of_failure(verdict.cause)
        return Diagnosis(found.cause, found.text or verdict.reason, found.evidence)
    return Diagnosis(ENDS[verdict.origin].cause, verdict.reason)
