"""The effects: what the core asks the agent to do.

An effect that asks a question has a `number`, which the event that answers it repeats.
"""

from __future__ import annotations

import signal

from .facts import Fact
from .messages import Message
from .model import Assignment, Look, Query, StagerPlace, StepNotice, Verdict
from .values import value


@value(frozen=True)
class Send:
    to: int
    message: Message


@value(frozen=True)
class Dial:
    """Connect to these agents, to send them reports, and close such connections to all others."""

    agents: tuple[int, ...]
    addresses: tuple[str, ...] = ()  # of each agent; "" if the head has not sent it


@value(frozen=True)
class TakePlace:
    """Take this place in the job: listen at its port, and report to the first head under its index.
    Answered by PlaceTaken.
    """

    index: int


@value(frozen=True)
class Probe:
    """Ask the host of an agent, at the agent's own port, whether the agent is dead.

    AgentGone answers within two seconds if it is. No answer, or a refused connection, proves
    nothing. A new probe of an agent replaces an earlier one.
    """

    agent: int
    address: str = ""
    port: int = 0  # the port where the agent listened; 0 if it is not known
    incarnation: str = ""  # of the agent; "" if it is not known
    number: int = 0


@value(frozen=True)
class OpenStore:
    """Open a fresh socket for the next round's store; answered by StoreListening."""


@value(frozen=True)
class CheckHealth:
    """Check this node's health before workers run on it; answered by HealthFound."""


@value(frozen=True)
class PrepareGpus:
    """Start what these workers need to share GPUs; answered by GpusReady."""

    assignment: Assignment


@value(frozen=True)
class ChooseCheckpoint:
    """Find the newest complete checkpoint; answered by CheckpointChosen or SearchFailed. A new
    search replaces an earlier one.
    """

    avoid: tuple[tuple[int, str], ...] = ()  # rejected checkpoints: (checksum of the mark, why)
    ended_well: bool = False  # all workers exited with 0, so none of their saves is unfinished
    is_last: bool = False  # the job may end, and then no round begins with what is found
    number: int = 0
    # With --stage on several nodes: the agents that need the checkpoint in memory, and whether the
    # next round can save there. If not, all that was saved there has to reach storage before.
    agents: tuple[int, ...] = ()
    stages: bool = False
    is_first: bool = False  # nothing was saved there, since no round has begun


@value(frozen=True)
class LeadStagers:
    """Let the stager of this agent lead those of the other agents."""

    term: int  # a stager obeys the leader of the highest term
    others: tuple[StagerPlace, ...]


@value(frozen=True)
class FlushStage:
    """Copy all that was saved in memory to storage; answered by StageFlushed, at the latest once
    the time `until` is reached.
    """

    until: float
    number: int = 0


@value(frozen=True)
class LookAt:
    """Look at this checkpoint repeatedly until its files are visible here. Answered by
    CheckpointSeen whenever the result has changed.
    """

    look: Look | None  # None: stop looking


@value(frozen=True)
class Diagnose:
    """Find out why other agents are not heard; answered by Diagnosed."""

    number: int = 0


@value(frozen=True)
class StartWorkers:
    """Start the workers. Answered by one WorkerExited for each, and WorkersGone after the last."""

    assignment: Assignment


@value(frozen=True)
class KeepWorkers:
    """Extend the worker lease: let workers run until this time. When it ends, the fork server holds
    them (SIGSTOP), even if the agent is stopped, and LeaseOver follows. The next KeepWorkers lets
    them continue. Held workers that must stop get SIGKILL.
    """

    until: float  # on this machine's monotonic clock


@value(frozen=True)
class AskWorkers:
    """Query the workers, without disturbing them; answered by WorkersAnswered, unless they have
    ended.
    """

    query: Query


@value(frozen=True)
class AwaitStillness:
    """Report the workers' activity as soon as none of them has shown a sign of life for one of
    these times; answered by WorkersSeen. The times of the last AwaitStillness no longer count.
    """

    seconds: tuple[float, ...]


@value(frozen=True)
class AskForEnd:
    """Ask Slurm when the job ends; answered by EndFound."""

    number: int = 0


@value(frozen=True)
class OfferNotice:
    """Make the workers wait at the step of this notice; answered by NoticeOffered. The notice
    replaces an earlier one that was not given.
    """

    notice: StepNotice


@value(frozen=True)
class WithdrawNotice:
    """Let the workers pass the step of the notice that was offered."""


@value(frozen=True)
class GiveNotice:
    """Give the workers the notice that was offered; answered by NoticeTaken once they have it."""

    number: int


@value(frozen=True)
class SignalWorkers:
    """Send a signal to the workers, except to those that have no handler and would be killed."""

    signum: int


@value(frozen=True)
class StopWorkers:
    """Send a signal to the workers. Once one has ended, end the rest of its process group."""

    signum: int = signal.SIGTERM


@value(frozen=True)
class KillIdleWorkers:
    """Send SIGKILL to the workers that have written nothing since SIGTERM, or since the last
    KillIdleWorkers: they are not saving, but wait for workers that are gone.
    """


@value(frozen=True)
class KillWorkers:
    """Send SIGKILL to the workers. The processes that they have started may clean up; LeftBehind
    reports those that remain.
    """


@value(frozen=True)
class SignalLeftovers:
    """Send a signal to all leftovers of the workers on this node."""

    signum: int


@value(frozen=True)
class Record:
    """Record a fact, and pass it to all observers."""

    fact: Fact
    ago: float = 0.0  # seconds since it happened


@value(frozen=True)
class Exit:
    """Show the user the verdict, and exit with its code."""

    verdict: Verdict
    alone: bool = False  # the other agents continue, and must learn at once that this one is dead


Effect = (
    Send
    | Dial
    | TakePlace
    | Probe
    | OpenStore
    | CheckHealth
    | PrepareGpus
    | ChooseCheckpoint
    | LeadStagers
    | FlushStage
    | LookAt
    | Diagnose
    | StartWorkers
    | KeepWorkers
    | AskWorkers
    | AwaitStillness
    | AskForEnd
    | OfferNotice
    | WithdrawNotice
    | GiveNotice
    | SignalWorkers
    | StopWorkers
    | KillIdleWorkers
    | KillWorkers
    | SignalLeftovers
    | Record
    | Exit
)
