"""The events: the input of the core.

An event that answers an effect repeats the `number` of the effect.
"""

from __future__ import annotations

from .job_state import JobState
from .messages import Message
from .model import Answer, Leftover, NoticeAnswer, Request, Rounds, Seen, Trouble
from .values import value


@value(frozen=True)
class Started:
    """The agent is up. This is the first event."""


@value(frozen=True)
class Received:
    """A message arrived. The channel has authenticated `sender`: the index of an agent or, if it
    has no place yet, a number greater than all indices.
    """

    sender: int
    message: Message
    address: str = ""  # the sender's address, as the transport saw it


@value(frozen=True)
class HeadReached:
    """This agent has connected to one that it reports to. Earlier messages may be lost.

    `address` is that agent's address. `own` is the address of this node: the user's choice, or the
    local end of the connection; "" if both agents are on one node.
    """

    index: int
    address: str = ""
    own: str = ""


@value(frozen=True)
class HeadClosed:
    """The connection to an agent that this one reports to was closed."""

    index: int


@value(frozen=True)
class PeerClosed:
    """The connection from an agent that reports to this one was closed."""

    index: int


@value(frozen=True)
class PlaceTaken:
    """This agent has taken its place, and listens on this port."""

    port: int


@value(frozen=True)
class AgentGone:
    """The host of an agent has confirmed that the agent is dead and its workers are killed."""

    index: int
    number: int = 0


@value(frozen=True)
class StoreListening:
    """A socket for the next round's store is open on this node."""

    port: int


@value(frozen=True)
class StoreEnded:
    """The process of a round's store has ended, or could not start."""

    port: int  # of the store
    code: int
    signal: int
    tail: str = ""  # the last lines it wrote


@value(frozen=True)
class HealthFound:
    """This node's health was checked, or something was noticed while workers were running."""

    unfit: str = ""  # why no worker may run here; "" if workers may


@value(frozen=True)
class GpusReady:
    """All that this round's workers need to share GPUs is ready; answers a PrepareGpus."""

    round: int


@value(frozen=True)
class CheckpointChosen:
    """The search for the newest complete checkpoint has ended."""

    path: str  # "" if there is none
    passed_over: tuple[str, ...] = ()  # newer ones that cannot be used, as "names: why"
    identity: str = ""  # differs for every save, even under the same path
    rule: str = ""  # the rule by which it is the newest
    size: int = 0  # bytes of its files
    time: int = 0  # when it was saved: the time of its decisive file, in ns; 0 if not known
    step: int | None = None  # the training step; None if not known
    scale: str = ""  # only steps of the same scale can be compared
    rounds: Rounds = ()  # the rounds in which it was saved
    is_read: bool = True  # its bytes are known to be whole: nobody has to read them again
    lacking: str = ""  # if there is no checkpoint: what was found instead
    age: float | None = None  # seconds since it was saved; None if not known
    took: float = 0.0  # seconds that the save took at least
    number: int = 0
    staged: bool = False  # the search looked in memory, and the next round saves there

    @property
    def mark(self) -> str:
        """A text that differs between two searches if and only if something was saved meanwhile."""
        return self.identity or self.path


@value(frozen=True)
class CheckpointDrained:
    """A checkpoint that was saved in memory has been copied to storage."""

    seconds: float  # that the copy took


@value(frozen=True)
class StagerFound:
    """The stager of this agent listens for others, has ended, or cannot work: with --stage on
    several nodes.
    """

    port: int = 0  # where it listens; 0 if it does not
    refused: str = ""  # why no script can save in the memory of this node; "" if it can


@value(frozen=True)
class StageFlushed:
    """All that was saved in memory is on storage, or was given up; answers a FlushStage."""

    lost: tuple[str, ...] = ()  # paths on storage of what is not there
    loses_checkpoint: bool = False  # the newest complete checkpoint is among them
    number: int = 0


@value(frozen=True)
class CheckpointSeen:
    """This agent has looked at the checkpoint of the last LookAt."""

    seen: Seen


@value(frozen=True)
class SearchFailed:
    """The search could not determine the newest checkpoint."""

    trouble: Trouble
    number: int = 0


@value(frozen=True)
class Diagnosed:
    """The reason why other agents are not heard, in words; "" if it is not known."""

    text: str
    number: int = 0


@value(frozen=True)
class WorkerExited:
    rank: int
    code: int
    signal: int
    tail: str = ""


@value(frozen=True)
class WorkersSeen:
    """The activity of the workers since the last of these events. One arrives every few seconds,
    and at once when something other than the steps has changed.
    """

    steps: tuple[int, ...]  # optimizer steps of each rank so far
    still: float  # seconds since the last sign of life of any worker; CPU time does not count
    gap: float  # the longest time between two steps
    busy: bool  # a worker uses the CPU
    trains: bool  # a worker has an optimizer
    meets: bool  # a worker is in init_process_group
    patient: bool  # their activity may take much longer than a step: they save, or evaluate
    traced: bool  # a debugger is attached to a worker
    save: float = 0.0  # the longest time between two steps in which a worker has saved
    spent: tuple[int, ...] = ()  # since the workers began: as `Spent.times`, but without START
    doing: int = 0  # the index in `spent` of what they do now; its length if they do nothing


@value(frozen=True)
class WorkersAnswered:
    """The answer to an AskWorkers."""

    answer: Answer


@value(frozen=True)
class LookedAt:
    """A user looks at the job. There is at most one such event a second."""


@value(frozen=True)
class Requested:
    """A request of the user that `Control.refusal` has accepted."""

    request: Request


@value(frozen=True)
class NoticeOffered:
    """The workers have answered an OfferNotice."""

    answer: NoticeAnswer


@value(frozen=True)
class NoticeTaken:
    """All workers that make steps have reached the step of a notice that was given."""

    number: int
    last: bool = False  # they have also ended, and none has begun another step


@value(frozen=True)
class NoticeUnheard:
    """No worker handles the signal of a notice that was given, or asks for notices."""

    number: int


@value(frozen=True)
class EndFound:
    """The time at which Slurm ends the job; answers an AskForEnd. An answer that arrives after the
    next question still counts, since Slurm may be slow to answer.
    """

    left: float | None  # seconds; None if that is not known
    state: JobState = JobState.UNKNOWN
    may_requeue: bool | None = None  # whether Slurm can requeue the job; None if that is not known
    requeued_if_killed: bool = False  # Slurm requeues the preempted job if it has to kill it
    draining: tuple[str, ...] = ()  # nodes of the job that Slurm drains
    endless: bool = False  # the job has no time limit, or no longer has one
    number: int = 0


@value(frozen=True)
class LeftBehind:
    """All workers have ended, but processes that they have started still run. This event is
    repeated at every change, until WorkersGone.
    """

    leftovers: tuple[Leftover, ...]


@value(frozen=True)
class WorkersGone:
    """No process that the round started is alive on this node, including the workers' children."""

    spent: tuple[int, ...] = ()  # as in WorkersSeen; () if it is not known


@value(frozen=True)
class LeaseOver:
    """The worker lease has ended. The fork server kills workers that are being stopped, and holds
    others until the lease is extended.
    """


@value(frozen=True)
class ForkServerReplaced:
    """The fork server was killed, with all processes that it had started, including the store and
    its socket. A new one has started. All events of the old one arrived before this.
    """


@value(frozen=True)
class Signalled:
    """This agent's process was sent a signal."""

    signum: int


@value(frozen=True)
class TroubleFound:
    """This agent cannot take part, or can no longer take part."""

    trouble: Trouble


@value(frozen=True)
class Tick:
    """`next_deadline()` has passed."""


Event = (
    Started
    | Received
    | HeadReached
    | HeadClosed
    | PeerClosed
    | PlaceTaken
    | AgentGone
    | StoreListening
    | StoreEnded
    | HealthFound
    | GpusReady
    | CheckpointChosen
    | CheckpointDrained
    | StagerFound
    | StageFlushed
    | CheckpointSeen
    | SearchFailed
    | Diagnosed
    | WorkerExited
    | WorkersSeen
    | WorkersAnswered
    | LookedAt
    | Requested
    | NoticeOffered
    | NoticeTaken
    | NoticeUnheard
    | EndFound
    | LeftBehind
    | WorkersGone
    | LeaseOver
    | ForkServerReplaced
    | Signalled
    | TroubleFound
    | Tick
)
