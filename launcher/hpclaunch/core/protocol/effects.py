"""What the core asks of the outside."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import Message
from .model import Assignment, Look, Verdict


@dataclass(frozen=True, slots=True)
class Send:
    to: int
    message: Message


@dataclass(frozen=True, slots=True)
class Dial:
    """Be connected to these agents, and to no others, as one who reports to them."""

    agents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """Find out whether an agent is dead, at once or in a second: its host refuses a connection to
    where it listened. AgentGone if so; nothing comes otherwise. Port 0: where is not known."""

    agent: int
    address: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class OpenStore:
    """Open a fresh socket for the next round's store; answered by StoreListening."""


@dataclass(frozen=True, slots=True)
class CheckHealth:
    """Look at this node before it is given workers; answered by HealthFound."""


@dataclass(frozen=True, slots=True)
class PrepareGpus:
    """Start what the workers of this part need to share GPUs; answered by GpusReady."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class ChooseCheckpoint:
    """Find the newest complete checkpoint; answered by CheckpointChosen, or SearchFailed."""

    avoid: tuple[tuple[int, str], ...] = ()  # (checksum of the mark, why) of those not to be chosen


@dataclass(frozen=True, slots=True)
class LookAt:
    """At this checkpoint, again and again until it is seen; answered by CheckpointSeen each time
    that something has changed. None: at nothing any more."""

    look: Look | None


@dataclass(frozen=True, slots=True)
class Diagnose:
    """Find out why others are not heard; answered by Diagnosed."""


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Answered by one WorkerExited for each worker, and WorkersGone after the last."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class KeepWorkers:
    """Workers may run until then, or longer if another of these comes: the fork server ends them
    otherwise, whatever has become of this agent. Answered by LeaseOver when it comes to that."""

    until: float  # on this machine's monotonic clock


@dataclass(frozen=True, slots=True)
class SignalWorkers:
    """Send a signal to the workers; one that would kill a worker unasked is not sent to it."""

    signum: int


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """SIGTERM to the workers' process groups."""


@dataclass(frozen=True, slots=True)
class KillIdleWorkers:
    """SIGKILL to those workers that have written nothing since they were asked to stop, or since
    the last of these: their peers are gone, so that they wait in vain and save nothing."""


@dataclass(frozen=True, slots=True)
class KillWorkers:
    """SIGKILL to everything that the round started on this node."""


@dataclass(frozen=True, slots=True)
class Say:
    """One line for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Exit:
    """The agent is done: tell the user the verdict and leave with its code."""

    verdict: Verdict


Effect = (
    Send
    | Dial
    | Probe
    | OpenStore
    | CheckHealth
    | PrepareGpus
    | ChooseCheckpoint
    | LookAt
    | Diagnose
    | StartWorkers
    | KeepWorkers
    | SignalWorkers
    | StopWorkers
    | KillIdleWorkers
    | KillWorkers
    | Say
    | Exit
)
