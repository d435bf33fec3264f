"""The events: the input of the core.

An event that answers a question repeats the `number` of the question.
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
    """A message arrived; `sender` is the agent's index, authenticated by the channel. An agent that
    has no place yet has a number beyond those of all places.
    """

    sender: int
    message: Message
    address: str = ""  # where it came from, as the transport saw it


@value(frozen=True)
class HeadReached:
    """A connection to an agent that we report to was made. Earlier messages may be lost.

    `address` is where that agent was reached. `own` is where others reach this node: the user's
    choice, or this end of the connection; "" if both agents are on one node.
    """

    index: int
    address: str = ""
    own: str = ""


@value(frozen=True)
class HeadClosed:
    """An agent that we report to has closed the connection."""

    index: int


@value(frozen=True)
class PeerClosed:
    """An agent that reports to us has closed the connection."""

    index: int


@value(frozen=True)
class PlaceTaken:
    """The agent listens on this port, in the place that it was given."""

    port: int


@value(frozen=True)
class AgentGone:
    """An agent is dead, and its workers are killed: its host has confirmed it."""

    index: int
    number: int = 0


@value(frozen=True)
class StoreListening:
    """A socket for the next round's store is open on this node."""

    port: int


@value(frozen=True)
class StoreEnded:
    """The process that held a round's store has ended, or could not begin."""

    port: int  # of that store
    code: int
    signal: int
    tail: str = ""  # the last lines it wrote


@value(frozen=True)
class HealthFound:
    """This node's health was checked, or something was noticed while workers were running."""

    unfit: str = ""  # why no worker should run here; "" if workers may


@value(frozen=True)
class GpusReady:
    """All that this round's workers need to share GPUs is there."""

    round: int


@value(frozen=True)
class CheckpointChosen:
    """The search for the newest complete checkpoint has ended."""

    path: str  # "" if there is none
    passed_over: tuple[str, ...] = ()  # newer ones that cannot be used, as "name: why"
    identity: str = ""  # differs for every save, even under the same path
    rule: str = ""  # by which rule it is the newest
    size: int = 0  # bytes of its files
    time: int = 0  # when it was saved: the time of its decisive file, in ns; 0 if not known
    step: int | None = None  # the training step; None if not known
    scale: str = ""  # only steps of the same scale can be compared
    rounds: Rounds = ()  # the rounds in which it was saved
    is_read: bool = True  # its bytes need not be read any more to know that they are whole
    lacking: str = ""  # if there is none: what is there instead
    age: float | None = None  # seconds since it was saved; None if not known
    took: float = 0.0  # seconds that the save took, at least
    number: int = 0

    @property
    def mark(self) -> str:
        """Differs between two searches if and only if something was saved in between."""
        return self.identity or self.path


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
    """A worker has ended."""

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
    still: float  # seconds for which no worker has done anything but use the CPU; 0: they do
    gap: float  # the longest time between two steps
    busy: bool  # they use the CPU
    trains: bool  # there is an optimizer
    meets: bool  # a process group is being made
    patient: bool  # what they do now may take much longer than a step: they save, or evaluate
    traced: bool  # by a debugger
    save: float = 0.0  # the longest time between two steps in which a worker has saved
    spent: tuple[int, ...] = ()  # since they began: as `Spent.times`, but without the start
    doing: int = 0  # the position of what they do now among these; one beyond: nothing


@value(frozen=True)
class WorkersAnswered:
    """Something was found out about the workers; answers an AskWorkers."""

    answer: Answer


@value(frozen=True)
class LookedAt:
    """Somebody looks at the job. There is at most one such event a second."""


@value(frozen=True)
class Requested:
    """The user asks something of the job, which `Control.refusal` does not refuse."""

    request: Request


@value(frozen=True)
class NoticeOffered:
    """The workers have answered an OfferNotice."""

    answer: NoticeAnswer


@value(frozen=True)
class NoticeTaken:
    """All workers that make steps have reached the step of a notice that was given."""

    number: int
    last: bool = False  # and have ended: none has begun another step


@value(frozen=True)
class NoticeUnheard:
    """No worker handles the signal of a notice that was given, or asks whether there is one."""

    number: int


@value(frozen=True)
class EndFound:
    """The time at which Slurm ends the job; answers an AskForEnd. An answer that arrives after the
    next question still counts: Slurm may be slower than the questions.
    """

    left: float | None  # seconds; None if that is not known
    state: JobState = JobState.UNKNOWN
    may_requeue: bool | None = None  # whether it may be started again; None if that is not known
    requeued_if_killed: bool = False  # it is started again after its preemption, if it is there
    draining: tuple[str, ...] = ()  # its nodes that no other job gets any more
    endless: bool = False  # it has no time limit, or none any more
    number: int = 0


@value(frozen=True)
class LeftBehind:
    """All workers have ended, but these processes that they have started still run. Repeated at
    every change, until WorkersGone.
    """

    leftovers: tuple[Leftover, ...]


@value(frozen=True)
class WorkersGone:
    """No process that the round started is alive on this node, including the workers' children."""

    spent: tuple[int, ...] = ()  # as in WorkersSeen; () if it is not known


@value(frozen=True)
class LeaseOver:
    """The worker lease was not extended in time. The fork server holds the workers until it is, or
    ends them if they are being stopped.
    """


@value(frozen=True)
class ForkServerReplaced:
    """The fork server was killed, and with it all that it had started, including the store and its
    socket. A new fork server is there. All events from the old one arrived before this.
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
