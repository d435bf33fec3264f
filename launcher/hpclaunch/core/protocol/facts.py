"""The facts: what happened to a job. Whoever decides records (`Record`); observers word and count.

A fact has no time of its own: it is dated where it is recorded. Its durations are seconds, and its
times are seconds after that moment, so those of the past are negative. A field `why` is a text for
people, which nothing is decided from.
"""

from __future__ import annotations

from enum import Enum

from .job_state import JobState
from .model import Failure, Leftover, Request, Verdict
from .node_facts import NodeFact
from .values import field, replace, value

# The time of the seats: GPUs, or where there are none the places of workers


class Category(str, Enum):
    """The activities of seats. Each second of each seat belongs to exactly one."""

    SCRIPT = "job script"  # before, between and after launches
    WAITING = "waiting for nodes"
    START = "start"
    IMPORTS = "imports"
    RENDEZVOUS = "rendezvous"
    LOADING = "loading"
    TRAINING = "training"
    SAVING = "saving"
    REDONE = "steps done twice"
    DETECTION = "failure detection"
    RESTART = "restart"
    SPARE = "idle spare"
    LOST = "lost or cordoned"
    END = "after the end"
    UNKNOWN = "unknown"


SeatSeconds = dict[Category, float]  # seconds times seats


@value(frozen=True)
class RoundShares:
    """The time of the seats of a round's workers, from its begin until the head ended it."""

    elapsed: float  # seconds in which this is so
    spent: SeatSeconds
    # From the first step on, until the round came to its end, in seconds after its begin; None if
    # no step was made.
    trained: tuple[float, float] | None = None


# The rounds


class EndReason(str, Enum):
    """The reason why a round ends before its workers are done."""

    FAILURE = "failure"  # of a worker or the store
    VERDICT = "verdict"  # the job is about to end
    LOSS = "loss"  # a node with workers was lost, or is cordoned
    QUORUM = "quorum"  # the leader lease is over
    GROWTH = "growth"  # the next round has more nodes, or other ones
    TIME = "time"  # Slurm is about to end the job
    ASKED = "asked"  # the user has asked for a restart


# Where a new reason is no fault of the program, it belongs here as well.
NOT_THE_PROGRAMS_FAULT = {EndReason.LOSS, EndReason.QUORUM, EndReason.GROWTH, EndReason.ASKED}


@value(frozen=True)
class IsolatedGpus:
    """Nodes on which each worker sees only its own GPUs."""

    hosts: tuple[str, ...]
    workers: int = 0  # so many share `gpus`; 0: no GPU is shared
    gpus: int = 0


@value(frozen=True)
class RoundBegan:
    round: int
    hosts: str  # in the order of the ranks, as Slurm writes it: "n3,n[1-2]"
    nodes: int
    ranks: int
    came: tuple[str, ...]  # hosts that were not in the round before
    gone: tuple[str, ...]  # hosts that were
    keeps_spares: bool  # the job has more nodes than a round may have
    spares: tuple[str, ...]  # of these, the hosts that could take part
    checkpoint: str  # "": none
    rule: str  # by which it is the newest
    passed_over: tuple[str, ...]  # newer ones, as "name: why"
    lacking: str  # without a checkpoint: what is there instead
    begins: int  # how often the training has begun, with this round
    saves: bool  # the script saves checkpoints in a directory that we know
    age: float | None = None  # since the checkpoint was saved; None: not known
    layout: str = ""  # the number of workers of each node, where they differ: "2(x3),1"
    isolated: tuple[IsolatedGpus, ...] = ()


@value(frozen=True)
class LostNode:
    """A node that took part in a round, and no longer can."""

    host: str
    why: str
    is_unfit: bool  # something is broken on it; else its agent is lost


@value(frozen=True)
class RoundEnded:
    """No worker of the round is left. In a ledger, times are seconds since the epoch."""

    round: int
    at: float  # when its cause occurred, as far as it is known
    seen: float  # when the head ended the round
    reasons: tuple[EndReason, ...]  # (): all of its workers were done
    failures: tuple[Failure, ...] = ()  # the first one in time is the cause
    lost: tuple[LostNode, ...] = ()
    ranks: int = 0  # 0 if that is not known: the round was another head's
    shares: RoundShares | None = None  # None: no agent has reported when it began

    @property
    def is_early(self) -> bool:
        """Whether it ended for another reason than the end of the job."""
        return any(reason is not EndReason.VERDICT for reason in self.reasons)

    @property
    def is_programs_fault(self) -> bool:
        """Whether it counts as a restart. It does not if a node was lost, although workers on other
        nodes then fail as a consequence.
        """
        return bool(self.failures) and NOT_THE_PROGRAMS_FAULT.isdisjoint(self.reasons)

    @property
    def has_failed(self) -> bool:
        """Whether a worker or the store failed while nobody was stopping it: it comes first."""
        return bool(self.failures) and not self.failures[0].stopped

    def moved(self, by: float) -> RoundEnded:
        """Return the same on a clock that is ahead by so many seconds."""
        failures = tuple(failure.moved(by) for failure in self.failures)
        return replace(self, at=self.at + by, seen=self.seen + by, failures=failures)


@value(frozen=True)
class SeatUse:
    """The activities of the job's seats from now on."""

    tenure: int  # the term in which the head began to lead
    # How many spend it on what. What those of a running round do is UNKNOWN until its end.
    seats: dict[Category, float]
    round: int | None = None  # that is running; None: no round is
    last: RoundEnded | None = None  # the round that runs or is being stopped, if it had ended now
    # The nodes that do so, in Slurm's form. One with several agents counts as its first one.
    nodes: dict[Category, str] = field(default_factory=dict)
    are_gpus: bool = False
    restarts: int = 0  # of the whole launch, also under earlier heads


@value(frozen=True)
class RestartDecided:
    """After a failure of the program, another round follows."""

    cause: Failure
    used: int  # restarts since the last progress
    most: int
    is_last: bool  # the job ends instead, unless a checkpoint was saved since the last start
    node_delay: float  # since one node fails again and again
    outage_delay: float  # so that a file system or a network can recover


@value(frozen=True)
class RequestGranted:
    request: Request  # other than STOP, which is in the verdict


@value(frozen=True)
class NodesJoin:
    """The round ends so that these nodes can take part."""

    hosts: tuple[str, ...]


# The workers


@value(frozen=True)
class HangFound:
    round: int
    still: float  # for so long there was no step
    usual: float  # the longest time between two steps before; 0: not known
    account: tuple[str, ...]  # what the ranks do, in words
    rank: int  # at fault; NO_RANK: none is
    host: str  # its host, or ""
    ends_in: float | None = None  # no restart is left: the round ends then; None: it ends now


@value(frozen=True)
class StragglerNamed:
    host: str
    rank: int  # NO_RANK: several on this host
    seconds: float  # of each step, for which the others wait for it
    pace: float  # seconds of a step
    why: str


@value(frozen=True)
class StragglerRecovered:
    host: str
    rank: int


class LeftoverStep(str, Enum):
    """The steps taken against processes that outlive the workers."""

    WAIT = "wait"
    END = "end"
    KILL = "kill"


@value(frozen=True)
class LeftoversFound:
    host: str
    step: LeftoverStep
    grace: float  # that they are given
    leftovers: tuple[Leftover, ...]


@value(frozen=True)
class WorkersSurvive:
    """The job is over, and workers are left that SIGKILL does not end."""

    host: str
    why: str


# The nodes


class CordonKind(str, Enum):
    """The reason why a node gets no workers."""

    UNFIT = "unfit"  # something is broken on it
    FAILING = "failing"  # its workers, and no others, have failed again and again
    SLOW = "slow"  # the others have waited for its workers, step after step
    DRAINING = "draining"  # Slurm drains it


@value(frozen=True)
class NodesCordoned:
    round: int  # the last one or, between two rounds, the next
    hosts: tuple[str, ...]
    kind: CordonKind
    why: str = ""  # one is unfit
    slurm_id: str = ""  # of the job
    alone: bool = False  # it is the only node of the job, whose verdict says the same


@value(frozen=True)
class DrainFound:
    """Slurm drains nodes of the round, for which there are spares."""

    hosts: tuple[str, ...]


@value(frozen=True)
class NodeLost:
    host: str
    why: str


@value(frozen=True)
class NodeArrived:
    """All agents of a node are here, after a round has begun without it."""

    host: str


@value(frozen=True)
class NodeCameBack:
    """The node was lost, and can take part again."""

    host: str


@value(frozen=True)
class NodesSilent:
    """Agents are not heard, and not lost yet."""

    hosts: tuple[str, ...]
    silent: float
    left: float  # until they count as lost


@value(frozen=True)
class NodeHeard:
    """The agent was silent, and is heard again."""

    host: str


# The wait for a round


@value(frozen=True)
class AgentsAwaited:
    """Agents are awaited that were never heard."""

    hosts: tuple[str, ...]
    here: int
    agents: int
    waited: float
    why: str


@value(frozen=True)
class NodesAwaited:
    """Too few nodes are left for a round."""

    hosts: tuple[str, ...]
    here: int
    fewest: int
    left: float  # until the job ends


@value(frozen=True)
class QuorumAwaited:
    """The head has no quorum without these agents."""

    hosts: tuple[str, ...]
    left: float  # until the job ends


@value(frozen=True)
class CheckpointSaved:
    """The newest complete checkpoint is another one than this head knew."""

    path: str
    step: int | None
    size: int  # bytes
    age: float | None  # since it was saved; None: not known


@value(frozen=True)
class CheckpointGone:
    """The newest checkpoint was removed, and there is no other one to resume from."""

    path: str


@value(frozen=True)
class CheckpointSought:
    """The search for a complete checkpoint takes long."""

    waited: float


@value(frozen=True)
class ReadersAwaited:
    """Agents have not seen the checkpoint yet that the round is to begin with."""

    hosts: tuple[str, ...]
    path: str
    waited: float


# The head


@value(frozen=True)
class HeadChanged:
    lost: str  # the host of the head before
    head: str  # the host of this one
    term: int
    heard: float  # when the head before was heard last
    ended: RoundEnded | None = None  # the last round, as the voters know it; None: none has begun
    was_running: bool = False  # it has ended with the head before; else that was between rounds


@value(frozen=True)
class HeadDeposed:
    """Another agent leads, with those that this one could not reach."""

    host: str
    head: str


@value(frozen=True)
class HeadLeaves:
    """The head has trouble on its own node, and another agent is to lead."""

    host: str
    why: str


@value(frozen=True)
class HeadAwaited:
    """An agent has not heard the head yet."""

    host: str
    head: str  # "" for a restarted first agent, which does not know who leads
    waited: float
    why: str


@value(frozen=True)
class HeadSilent:
    """An agent does not hear the head, which is not lost yet."""

    host: str
    head: str
    silent: float
    left: float  # until it counts as lost


@value(frozen=True)
class HeadHeard:
    """The head was silent, and is heard again."""

    host: str
    head: str


@value(frozen=True)
class ElectionAwaited:
    """The head was lost, and too few agents are there to elect another."""

    host: str
    head: str
    why: str
    left: float  # until the agent gives up


# The allocation


@value(frozen=True)
class NodesAllocated:
    """Slurm has reported since when the job has its nodes."""

    since: float


# The end of the job


@value(frozen=True)
class EndAnnounced:
    """A SIGTERM from Slurm means that the job ends later."""

    state: JobState  # RUNNING: it is the time limit
    left: float


@value(frozen=True)
class NoticeGiven:
    """The workers have notice of the end."""

    round: int
    step: int  # before which they take it; 0: each before its next
    state: JobState  # the end that it is of, as above
    left: float


@value(frozen=True)
class RequeueImpossible:
    """The user wants the job to be requeued, and Slurm does not do that with this job."""

    slurm_id: str


@value(frozen=True)
class JobEnded:
    """All agents are to leave."""

    round: int
    verdict: Verdict
    without: tuple[tuple[str, str], ...] = ()  # (host, why) of nodes that were unfit


Fact = (
    RoundBegan
    | RoundEnded
    | SeatUse
    | RestartDecided
    | RequestGranted
    | NodesJoin
    | HangFound
    | StragglerNamed
    | StragglerRecovered
    | LeftoversFound
    | WorkersSurvive
    | NodesCordoned
    | DrainFound
    | NodeLost
    | NodeArrived
    | NodeCameBack
    | NodesSilent
    | NodeHeard
    | AgentsAwaited
    | NodesAwaited
    | QuorumAwaited
    | CheckpointSaved
    | CheckpointGone
    | CheckpointSought
    | ReadersAwaited
    | HeadChanged
    | HeadDeposed
    | HeadLeaves
    | HeadAwaited
    | HeadSilent
    | HeadHeard
    | ElectionAwaited
    | NodesAllocated
    | EndAnnounced
    | NoticeGiven
    | RequeueImpossible
    | JobEnded
    | NodeFact
)
