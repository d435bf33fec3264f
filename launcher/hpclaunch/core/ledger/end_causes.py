"""Why a round or a job ended, in one of a few kinds, with what tells so.

The first failure in time counts: its consequences say that a peer is gone, whatever they say.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
from enum import Enum

from ..protocol.model import EXIT_USAGE, OUT_OF_MEMORY, Culprit, Ending, Failure, Verdict
from .book import RoundEnd

MOST_FRAMES = 3  # of a traceback, the innermost
PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # with which torch begins each line
FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


class EndCause(str, Enum):
    MEMORY = "out of memory"
    GPU_MEMORY = "out of GPU memory"
    GPU = "GPU fault"
    DISK = "disk full"
    HANG = "hang"
    TIMEOUT = "time-out"
    PEER = "connection lost"
    EXCEPTION = "exception"
    CRASH = "crash"
    KILLED = "killed"
    LOST = "node lost"
    UNFIT = "node unfit"
    PREEMPTED = "preemption"
    REQUEUED = "requeue"  # by somebody else
    TIME_LIMIT = "time limit"
    USER = "user"
    USAGE = "wrong usage"
    GROWTH = "more nodes"
    PROGRAM = "exit code"
    DONE = "done"
    OTHER = "other"


# With which a round can end; the others are of jobs.
_OF_JOBS = (EndCause.PREEMPTED, EndCause.REQUEUED, EndCause.USAGE, EndCause.DONE)
OF_ROUNDS = tuple(cause for cause in EndCause if cause not in _OF_JOBS)


# In this order: what is said of a fault of the hardware or of memory, often beside an exception,
# comes before the exception itself.
WORDS = (
    (EndCause.MEMORY, re.compile(rf"{OUT_OF_MEMORY}|\bMemoryError\b|Cannot allocate memory")),
    (
        EndCause.GPU_MEMORY,
        re.compile(r"(?:CUDA|HIP|XPU) (?:error: )?out of memory|OutOfMemoryError"),
    ),
    (
        EndCause.GPU,
        re.compile(r"\bXid \d+|uncorrectable ECC|CUDA error: (?:unspecified|device-side)"),
    ),
    (EndCause.DISK, re.compile(r"No space left on device|Disk quota exceeded")),
    (
        EndCause.TIMEOUT,
        re.compile(
            r"Watchdog caught collective operation timeout|checkTimeout|[Tt]imed? ?out|"
            r"monitoredBarrier|wait timeout after"
        ),
    ),
    (
        EndCause.PEER,
        re.compile(r"Connection (?:closed by|reset by|refused)|ncclRemoteError|Broken pipe"),
    ),
    (
        EndCause.EXCEPTION,
        re.compile(r"^Traceback |^(?:\w+\.)*\w*(?:Error|Exception)\b", re.MULTILINE),
    ),
)
IN_MESSAGE = (EndCause.TIMEOUT, EndCause.PEER)  # these words are also in many a line before it
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    cause: EndCause
    text: str  # one line
    evidence: tuple[str, ...] = ()  # further lines


def of_failure(failure: Failure) -> Diagnosis:
    failure = replace(failure, tail=PREFIX.sub("", failure.tail))
    cause = _kind(failure)
    lines = [line for line in failure.tail.splitlines() if line.strip()]
    said = lines[-1].strip() if lines else ""
    for kind, words in WORDS:
        if kind is cause:
            said = next((line.strip() for line in reversed(lines) if words.search(line)), said)
            break
    if cause is EndCause.EXCEPTION and lines:
        said = _exception(failure.tail) or said
    found = FRAME.findall(failure.tail)[-MOST_FRAMES:] if cause is not EndCause.HANG else []
    frames = [f"{file.rpartition('/')[2]}:{line}, {name}" for file, line, name in reversed(found)]
    return Diagnosis(cause, said, tuple(frames))


def _kind(failure: Failure) -> EndCause:
    if failure.culprit is Culprit.HANG:
        return EndCause.HANG
    message = _message(failure.tail)
    for cause, words in WORDS[:1] if failure.signal else WORDS:
        if words.search(message if cause in IN_MESSAGE else failure.tail):
            return cause
    if failure.signal in CRASHES:
        by_words = (cause for cause, words in WORDS[1:] if words.search(failure.tail))
        return next((c for c in by_words if c in (EndCause.GPU, EndCause.TIMEOUT)), EndCause.CRASH)
    return EndCause.KILLED if failure.signal else EndCause.PROGRAM


def _message(tail: str) -> str:
    """Of an exception what comes after its traceback, of anything else all of it."""
    frames = list(FRAME.finditer(tail))
    if not frames:
        return tail
    lines = tail[frames[-1].end() :].splitlines()
    return "\n".join(line for line in lines if not line.startswith("    "))  # those have code


def _exception(tail: str) -> str:
    """What stands after a traceback, or the last line. Where the first line of a message ends with
    a colon, what comes below it belongs to it."""
    said = [line.strip() for line in _message(tail).splitlines()]
    lines = [line for line in said if line and not line.startswith("[...")]
    if not FRAME.search(tail):
        return lines[-1]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1]) if lines else ""


def of_round(end: RoundEnd) -> Diagnosis:
    """Why a round ended. A lost node comes before workers that failed on others for want of it."""
    reasons = set(end.reasons)
    if reasons & {"loss", "quorum"} and not _failed_before(end):
        lost = end.lost[0] if end.lost else "too few agents could be heard"
        unfit = end.lost and " lost" not in lost and "has left" not in lost
        return Diagnosis(EndCause.UNFIT if unfit else EndCause.LOST, lost)
    if has_failed(end):
        return of_failure(end.failures[0])
    if "growth" in reasons:
        return Diagnosis(EndCause.GROWTH, "the next round has more nodes, or other ones")
    if "asked" in reasons:
        return Diagnosis(EndCause.USER, "the user has asked for a restart")
    if "time" in reasons:
        return Diagnosis(EndCause.TIME_LIMIT, "Slurm was about to end the job")
    return Diagnosis(EndCause.OTHER, "the job was ended")


def has_failed(end: RoundEnd) -> bool:
    """Whether a worker or the store failed while nobody was stopping it: it comes first then."""
    return bool(end.failures) and not end.failures[0].stopped


def _failed_before(end: RoundEnd) -> bool:
    """Whether a worker failed by itself before a node was lost."""
    return has_failed(end) and end.failures[0].at <= end.at


def of_job(verdict: Verdict) -> Diagnosis:
    """Why a job ended; the verdict's reason says the rest."""
    reason = verdict.reason
    if verdict.code == 0:
        return Diagnosis(EndCause.DONE, reason)
    if verdict.cause is not None:
        found = of_failure(verdict.cause)
        return Diagnosis(found.cause, found.text or reason, found.evidence)
    if verdict.ending is Ending.PREEMPTION:
        is_requeued = "Slurm requeues it" in reason
        return Diagnosis(EndCause.REQUEUED if is_requeued else EndCause.PREEMPTED, reason)
    if verdict.ending is Ending.TIME_LIMIT:
        return Diagnosis(EndCause.TIME_LIMIT, reason)
    if verdict.code == EXIT_USAGE:
        return Diagnosis(EndCause.USAGE, reason)
    if "ended by " in reason:  # a signal, or hpclaunch stop
        return Diagnosis(EndCause.USER, reason)
    if re.search(r"\blost\b|nodes? (?:is|are) left|the head on", reason):
        return Diagnosis(EndCause.LOST, reason)
    return Diagnosis(EndCause.OTHER, reason)
