"""What the outside tells the core."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import Message
from .model import Rounds, Seen, Trouble


@dataclass(frozen=True, slots=True)
class Started:
    """The agent is up; the first event there is."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message arrived; `sender` is the agent's index, authenticated by the channel."""

    sender: int
    message: Message
    address: str = ""  # where it came from, as the transport saw it


@dataclass(frozen=True, slots=True)
class HeadReached:
    """A connection to an agent that we report to was made: what was said before may be lost."""

    index: int


@dataclass(frozen=True, slots=True)
class HeadClosed:
    """Such a connection was closed from its side."""

    index: int


@dataclass(frozen=True, slots=True)
class PeerClosed:
    """An agent that reports to us has closed its connection."""

    index: int


@dataclass(frozen=True, slots=True)
class AgentGone:
    """It is dead: its host refuses the connection, or is known to be down."""

    index: int


@dataclass(frozen=True, slots=True)
class StoreListening:
    """A socket for the next round's store is open on this node."""

    port: int


@dataclass(frozen=True, slots=True)
class StoreEnded:
    """The process that held the store of a round is gone, or could not begin."""

    port: int  # of that store
    code: int
    signal: int
    tail: str = ""  # its last words


@dataclass(frozen=True, slots=True)
class HealthFound:
    """This node was looked at, or something was noticed meanwhile."""

    unfit: str = ""  # why no worker should run here, "" when nothing is against it


@dataclass(frozen=True, slots=True)
class GpusReady:
    """Nothing is missing for the workers of this round to use their GPUs."""

    round: int


@dataclass(frozen=True, slots=True)
class CheckpointChosen:
    """The newest complete checkpoint of the directory, "" when there is none."""

    path: str
    passed_over: tuple[str, ...] = ()  # "name: why", newer ones that are not complete
    identity: str = ""  # another one for every save, also where the path is the same
    rule: str = ""  # how it was found to be the newest
    size: int = 0  # bytes of its files
    time: int = 0  # of the file that decides, in ns
    step: int | None = None  # how far the training was, where that is known
    scale: str = ""  # steps on the same one can be compared
    rounds: Rounds = ()  # in which it was saved
    is_read: bool = True  # nothing of it is to be read to know that it is whole
    lacking: str = ""  # without one: what is there instead

    @property
    def mark(self) -> str:
        """Two of them differ if and only if something was saved in between."""
        return self.identity or self.path


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """This agent has looked at it."""

    seen: Seen


@dataclass(frozen=True, slots=True)
class SearchFailed:
    """Nobody can say which checkpoint is the newest."""

    trouble: Trouble


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """Why others are not heard, in a sentence or two; "" when nothing is known."""

    text: str


@dataclass(frozen=True, slots=True)
class WorkerExited:
    rank: int
    code: int
    signal: int
    tail: str = ""


@dataclass(frozen=True, slots=True)
class WorkersGone:
    """Nothing that the round started is alive on this node any more, grandchildren included."""


@dataclass(frozen=True, slots=True)
class LeaseOver:
    """The workers are being ended, since nobody has said in time that they may go on."""


@dataclass(frozen=True, slots=True)
class ForkServerReplaced:
    """The fork server was killed, with all that it had started, its store and listening socket
    too; a new one is here. Whatever the old one had told came before."""


@dataclass(frozen=True, slots=True)
class Signalled:
    """This agent's process was sent a signal."""

    signum: int


@dataclass(frozen=True, slots=True)
class TroubleFound:
    """This agent cannot take part, or can no longer."""

    trouble: Trouble


@dataclass(frozen=True, slots=True)
class Tick:
    """`next_deadline()` has passed."""


Event = (
    Started
    | Received
    | HeadReached
    | HeadClosed
    | PeerClosed
    | AgentGone
    | StoreListening
    | StoreEnded
    | HealthFound
    | GpusReady
    | CheckpointChosen
    | CheckpointSeen
    | SearchFailed
    | Diagnosed
    | WorkerExited
    | WorkersGone
    | LeaseOver
    | ForkServerReplaced
    | Signalled
    | TroubleFound
    | Tick
)
