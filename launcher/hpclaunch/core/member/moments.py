"""Moments: what an agent notes of its own workers and GPUs, for the page of the job.

It notes them every `period` seconds, and when a round begins or ends. They never cross the network,
and do not depend on the head.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol.gpu_use import GpuUse
from ..protocol.model import Doing
from ..protocol.values import value

SHORTEST, LONGEST = 20.0, 300.0  # seconds between two moments
YOUNG, YOUNGEST = 60.0, 5.0  # seconds; below the age of YOUNG, YOUNGEST replaces SHORTEST
PER_AGE = 30  # the period is at least the age divided by this
AGENTS = 16  # the most agents that write to the log directory in one second
LATEST = 1e11  # seconds since the epoch; a later time is damaged data
MOST_RANKS = 1 << 20  # of a job
MOST = 1 << 60  # bytes, steps or milliseconds


@value(frozen=True)
class GpusMoment:
    """The GPUs of an agent's task together."""

    count: int
    busy: float | None  # the mean share; None if they do not report it
    idlest: float | None
    used: int  # bytes of their memory
    total: int
    temperature: int  # of the hottest, in degrees Celsius


@value(frozen=True)
class WorkersMoment:
    """The workers of an agent in a round."""

    first: int  # rank
    count: int
    elapsed: float  # seconds since the round began here
    # The parts of `elapsed`: milliseconds for each `Doing` up to SAVING, and then what they do now.
    spent: tuple[int, ...]
    steps: int  # in this round, of the furthest rank
    seen: float  # when the steps were read, in seconds since the round began here
    step: int = 0  # the step as the script counts; 0 if it does not report it
    memory: int = 0  # resident bytes; 0 if not known
    largest: int = 0  # the largest of one worker
    gpus: GpusMoment | None = None


@value(frozen=True)
class AgentMoment:
    at: float  # seconds since the epoch
    round: int
    workers: WorkersMoment


def period(age: float, agents: int) -> float:
    """Return the seconds until the next moment of an agent of this age. A job of an hour has some
    100 moments, one of a day 380, and each further day adds 288.
    """
    shortest = YOUNGEST if age < YOUNG else SHORTEST
    return min(LONGEST, max(shortest, agents / AGENTS, age / PER_AGE))


def of_gpus(gpus: Sequence[GpuUse]) -> GpusMoment:
    """Return a moment of GPUs, of which there is at least one."""
    busy = [gpu.busy for gpu in gpus if gpu.busy is not None]
    return GpusMoment(
        len(gpus),
        busy=round(sum(busy) / len(busy), 3) if busy else None,
        idlest=min(busy) if busy else None,
        used=sum(gpu.used for gpu in gpus),
        total=sum(gpu.total for gpu in gpus),
        temperature=max(gpu.temperature for gpu in gpus),
    )


def is_sound(moment: AgentMoment) -> bool:
    """Return whether the values are possible. If not, the line of the file is damaged."""
    workers, spent, gpus = moment.workers, moment.workers.spent, moment.workers.gpus
    times = (moment.at, workers.elapsed, workers.seen)
    numbers = [*spent, workers.steps, workers.step, workers.memory, workers.largest]
    shares: list[float] = []
    if gpus is not None:
        numbers += [gpus.used, gpus.total, abs(gpus.temperature)]
        shares = [share for share in (gpus.busy, gpus.idlest) if share is not None]
    return (
        moment.at >= 0
        and all(-LATEST < at < LATEST for at in times)
        and all(0 <= share <= 1 for share in shares)
        and 0 <= workers.first < MOST_RANKS
        and 0 < workers.count < MOST_RANKS
        and all(0 <= number < MOST for number in numbers)
        and len(spent) == Doing.NOTHING + 1
        and spent[-1] <= Doing.NOTHING
    )


@value(frozen=True)
class AgentHistory:
    """The moments of one agent in one launch, in the order of time."""

    launch: str
    index: int
    host: str
    moments: tuple[AgentMoment, ...]
