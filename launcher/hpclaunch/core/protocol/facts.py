"""The facts: what happened to a job. The agent that decides something records it (`Record`), and
observers show and count it.

A fact has no date: it gets one when it is recorded. Its durations are seconds, and its times are
seconds after its date, so past times are negative. No decision depends on a text in `why`.
"""

from __future__ import annotations

from enum import Enum

from .job_state import JobState
from .model import Failure, Leftover, Request, Verdict
from .node_facts import NodeFact
from .values import field, replace, value

# The use of seats: GPUs, or the workers' places on nodes without GPUs


class Category(str, Enum):
    """The activities of seats. Each second of a seat belongs to exactly one."""

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
    """The activities of the workers' seats in a round, until the head ended the round."""

    elapsed: float  # seconds from the start of the round to its end
    spent: SeatSeconds
    # (first step, cause of the end), in seconds after the start of the round; None without a step.
    trained: tuple[float, float] | None = None


# The rounds


class EndReason(str, Enum):
    """The reason why a round ends before its workers are done."""

    FAILURE = "failure"  # of a worker or the store
    VERDICT = "verdict"  # the job is about to end
    LOSS = "loss"  # a node with workers was lost or cordoned
    QUORUM = "quorum"  # the leader lease has ended
    GROWTH = "growth"  # the next round has more nodes, or replaces some
    TIME = "time"  # Slurm is about to end the job, at its time limit
    PREEMPTION = "preemption"  # the same, for another job
    REQUEUE = "requeue"  # the same, since somebody else has requeued it
    ASKED = "asked"  # the user has asked for a restart


NOT_THE_PROGRAMS_FAULT = {EndReason.LOSS, EndReason.QUORUM, EndReason.GROWTH, EndReason.ASKED}


@value(frozen=True)
class IsolatedGpus:
    """Nodes on which each worker sees only its own GPUs."""

    hosts: tuple[str, ...]
    workers: int = 0  # the number of workers that share `gpus` GPUs; 0: no GPU is shared
    gpus: int = 0


@value(frozen=True)
class RoundBegan:
    round: int
    hosts: str  # in the order of the ranks, in Slurm's form: "n3,n[1-2]"
    nodes: int
    ranks: int
    came: tuple[str, ...]  # hosts that are new since the last round
    gone: tuple[str, ...]  # hosts of the last round that are not in this one
    keeps_spares: bool  # the job has more nodes than a round may have
    spares: tuple[str, ...]  # hosts that could take part, but the round has no room for them
    checkpoint: str  # its path; "" for none
    rule: str  # the rule by which it is the newest
    passed_over: tuple[str, ...]  # newer ones that cannot be used, as "names: why"
    lacking: str  # if there is no checkpoint: what was found instead, or what is lost
    begins: int  # rounds that have begun, as far as this head knows, including this one
    saves: bool  # the script saves checkpoints in a known directory
    age: float | None = None  # since the checkpoint was saved; None: not known
    layout: str = ""  # the number of workers of each node, where they differ: "2(x3),1"
    isolated: tuple[IsolatedGpus, ...] = ()


@value(frozen=True)
class LostNode:
    """A node that took part in a round until it was lost or cordoned."""

    host: str
    why: str  # with the host
    is_unfit: bool  # True: something on it is broken; False: its agent is lost


@value(frozen=True)
class RoundEnded:
    """No worker of the round is left. In a ledger, times are seconds since the epoch."""

    round: int
    at: float  # when the cause of its end occurred, as far as known
    seen: float  # when the head ended the round
    reasons: tuple[EndReason, ...]  # (): all of its workers were done
    failures: tuple[Failure, ...] = ()  # in order of time: the first one is the cause
    lost: tuple[LostNode, ...] = ()
    ranks: int = 0  # 0 if not known, because another head led the round
    shares: RoundShares | None = None  # None: not known

    @property
    def is_early(self) -> bool:
        """Whether it ended for a reason other than the end of the job."""
        return any(reason is not EndReason.VERDICT for reason in self.reasons)

    @property
    def is_programs_fault(self) -> bool:
        """Whether it counts as a restart. If a node was lost, it does not: workers on other nodes
        then fail as a consequence.
        """
        return bool(self.failures) and NOT_THE_PROGRAMS_FAULT.isdisjoint(self.reasons)

    @property
    def has_failed(self) -> bool:
        """Whether the first failure is a cause: the process failed before it was stopped."""
        return bool(self.failures) and not self.failures[0].stopped

    def moved(self, by: float) -> RoundEnded:
        """Return the same fact for a clock that is `by` seconds ahead."""
        failures = tuple(failure.moved(by) for failure in self.failures)
        return replace(self, at=self.at + by, seen=self.seen + by, failures=failures)


@value(frozen=True)
class SeatUse:
    """The activities of the job's seats from now on."""

    tenure: int  # the term in which the head began to lead
    # The number of seats by activity; in a running round, UNKNOWN until the round ends.
    seats: dict[Category, float]
    round: int | None = None  # the running round; None if there is none
    last: RoundEnded | None = None  # how the running or stopping round would end now
    # The nodes by activity, in Slurm's form. A node with several agents counts as its first agent.
    nodes: dict[Category, str] = field(default_factory=dict)
    are_gpus: bool = False
    restarts: int = 0  # of the whole launch, including those under earlier heads


@value(frozen=True)
class RestartDecided:
    """The decision about another round, after a failure of the program."""

    cause: Failure
    used: int  # restarts since the last progress
    most: int
    is_last: bool  # the job ends, unless a checkpoint was saved since the last start
    node_delay: float  # the wait because one node fails repeatedly
    outage_delay: float  # the wait for a file system or a network to recover


@value(frozen=True)
class RequestGranted:
    request: Request  # not STOP, which the verdict contains


@value(frozen=True)
class NodesJoin:
    """The round ends so that these nodes can take part."""

    hosts: tuple[str, ...]


# The workers


@value(frozen=True)
class HangFound:
    round: int
    still: float  # seconds without a step
    usual: float  # the longest time between two recent steps; 0: not known
    account: tuple[str, ...]  # what the ranks do, in words
    rank: int  # the rank at fault; NO_RANK: none is known
    host: str  # its host, or ""
    ends_in: float | None = None  # no restart is left: seconds until the round ends; None: now


@value(frozen=True)
class StragglerNamed:
    host: str
    rank: int  # NO_RANK: several on this host
    seconds: float  # the time that the others wait for it in each step
    pace: float  # seconds for a step
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
    grace: float  # seconds from SIGTERM to SIGKILL
    leftovers: tuple[Leftover, ...]


@value(frozen=True)
class WorkersSurvive:
    """The job is over, but some of its workers, or their leftovers, survive SIGKILL."""

    host: str
    why: str


# The nodes


class CordonKind(str, Enum):
    """The reason why a node gets no workers."""

    UNFIT = "unfit"  # something is broken on it
    FAILING = "failing"  # its workers, and no others, have failed repeatedly
    SLOW = "slow"  # the others have waited for its workers in every step
    DRAINING = "draining"  # Slurm drains it


@value(frozen=True)
class NodesCordoned:
    round: int  # the running one or, between two rounds, the next
    hosts: tuple[str, ...]
    kind: CordonKind
    why: str = ""  # UNFIT: what is broken
    slurm_id: str = ""  # of the job
    alone: bool = False  # the job has no other node, and its verdict gives the same reason


@value(frozen=True)
class DrainFound:
    """Slurm drains nodes of the round, and spares can replace them."""

    hosts: tuple[str, ...]


@value(frozen=True)
class NodeLost:
    """A node is lost: the first of its agents counts as lost."""

    host: str
    why: str


@value(frozen=True)
class NodeArrived:
    """All agents of a node are heard, after a round has begun without that node."""

    host: str


@value(frozen=True)
class NodeCameBack:
    """A lost node can take part again."""

    host: str


@value(frozen=True)
class NodesSilent:
    """Agents have been silent for some time, but do not count as lost yet."""

    hosts: tuple[str, ...]
    silent: float
    left: float  # until they count as lost


@value(frozen=True)
class NodeHeard:
    """The silent agents of a node are all heard again."""

    host: str


# The wait for a round


@value(frozen=True)
class AgentsAwaited:
    """The head waits for agents that were never heard."""

    hosts: tuple[str, ...]
    here: int  # agents that were heard
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
    """The newest complete checkpoint has changed."""

    path: str
    step: int | None
    size: int  # bytes
    age: float | None  # since it was saved; None: not known


@value(frozen=True)
class CheckpointStored:
    """--stage: a checkpoint was copied from memory to storage."""

    path: str
    step: int | None
    size: int  # bytes
    seconds: float


@value(frozen=True)
class CheckpointGone:
    """The newest checkpoint was removed, and no other one can be resumed from."""

    path: str


@value(frozen=True)
class CheckpointSought:
    """The search for a complete checkpoint takes a long time."""

    waited: float


@value(frozen=True)
class ReadersAwaited:
    """Agents do not see the checkpoint yet that the next round resumes from."""

    hosts: tuple[str, ...]
    path: str
    waited: float


# The head


@value(frozen=True)
class HeadChanged:
    lost: str  # the host of the old head
    head: str  # the host of the new head
    term: int
    heard: float  # when the old head was heard last
    ended: RoundEnded | None = None  # the last round, as the voters know it; None: none has begun
    was_running: bool = False  # that round was running when the old head was lost


@value(frozen=True)
class HeadDeposed:
    """This head was replaced: another agent leads those that it could not reach."""

    host: str
    head: str


@value(frozen=True)
class HeadLeaves:
    """The head leaves because of trouble on its own node, so that another agent leads."""

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
    """The head has been silent for some time, but does not count as lost yet."""

    host: str
    head: str
    silent: float
    left: float  # until it counts as lost


@value(frozen=True)
class HeadHeard:
    """A silent head is heard again."""

    host: str
    head: str


@value(frozen=True)
class ElectionAwaited:
    """The head was lost, and too few agents are left to elect another."""

    host: str
    head: str
    why: str
    left: float  # until the agent gives up


# The allocation


@value(frozen=True)
class NodesAllocated:
    """Slurm has reported when the job got its nodes."""

    since: float


# The end of the job


@value(frozen=True)
class EndAnnounced:
    """Slurm's SIGTERM means that the job ends later."""

    state: JobState  # RUNNING: at its time limit
    left: float


@value(frozen=True)
class NoticeGiven:
    """The workers have notice of the end."""

    round: int
    step: int  # the step before which they take it; 0: each before its next
    state: JobState  # RUNNING: the end is the time limit
    left: float  # until that end


@value(frozen=True)
class RequeueImpossible:
    """The user wants Slurm to requeue the job, but Slurm cannot requeue this job."""

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
    | CheckpointStored
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
