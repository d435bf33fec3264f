"""The model of a job: frozen values that events, messages and effects carry.

Times are seconds on the monotonic clock of the agent that holds the value. Only times of a `Sample`
are compared with another machine's: the sample has the offset between the two clocks.
"""

from __future__ import annotations

import signal
from enum import Enum, IntEnum
from typing import TypeAlias

from .gpu_use import GpuUse
from .timing import DEFAULTS, Timing
from .values import replace, value, variant

HEAD = 0  # the index of the first head: the first agent in Slurm's order
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # they end the job
NOTICE_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)  # they may give workers notice
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)  # the agent forwards them to the workers

PLACEHOLDER = "{checkpoint}"  # stands for the path to resume from, in the words of --resume-with
OUT_OF_MEMORY = "out of memory: killed by the kernel"  # in the tail of a WorkerExit

EXIT_FAILED = 1  # as from torchrun, which has one code for all failures
EXIT_LOST = 1  # the job ended because an agent, not a worker, was lost
EXIT_USAGE = 2
EXIT_HUNG = 124  # as from timeout(1)
EXIT_SAVED = 75  # EX_TEMPFAIL of sysexits.h: not finished, but can continue from a checkpoint


@value(frozen=True)
class Place:
    index: int  # position among all agents, in the order of their nodes, 0-based
    node: int  # position of its host among all hosts, 0-based
    host: str


def nodes_of(places: tuple[Place, ...]) -> int:
    return 1 + max(place.node for place in places)


@value(frozen=True)
class Allocation:
    """The places of an agent and of all others: from Slurm, or from the command line."""

    name: str  # "<job>.<step>", or "local-<time>-<pid>" without Slurm
    identity: str  # differs for every start of a job; the keys derive from it
    places: tuple[Place, ...]
    index: int
    # The host ("": not given) and port (0: not given) that the user has named for the first head.
    endpoint: tuple[str, int] | None = None
    has_place: bool = True  # False: `index` is a stand-in until the first head assigns a place
    task: int = 0  # Slurm's number of this agent's task
    is_step: bool = True  # False without Slurm, where only the first machine's name is known

    @property
    def label(self) -> str:
        """A name for this agent's files that no other agent has."""
        return str(self.index) if self.has_place else self.places[self.index].host

    @property
    def alone(self) -> bool:
        return len(self.places) == 1

    @property
    def nodes(self) -> int:
        return nodes_of(self.places)

    def led_from(self, host: str) -> Allocation:
        """Return the allocation with the agents on this host first, so that one of them leads."""

        def is_there(place: Place) -> bool:
            return place.host.partition(".")[0] == host.partition(".")[0]

        order = sorted(self.places, key=lambda place: not is_there(place))
        node_of = {node: i for i, node in enumerate(dict.fromkeys(p.node for p in order))}
        places = tuple(Place(i, node_of[p.node], p.host) for i, p in enumerate(order))
        return replace(self, places=places, index=order.index(self.places[self.index]))

    @property
    def tasks_here(self) -> int:
        """The number of agents on this agent's node, including itself."""
        mine = self.places[self.index].node
        return sum(place.node == mine for place in self.places)


def a_machine(index: int) -> str:
    """Return a stand-in for the name of a place's host, until the agent knows it."""
    return f"machine {index}"


def with_place(places: tuple[Place, ...], index: int, *, stand_in: int) -> tuple[Place, ...]:
    """Move an agent's host from its stand-in to its place, `index`. Return all places."""
    known = {stand_in: a_machine(stand_in), index: places[stand_in].host}
    return tuple(replace(p, host=known.get(p.index, p.host)) for p in places)


class Grow(str, Enum):
    """The time to end a round so that a new or returned node can take part in the next one."""

    NOW = "now"
    CHECKPOINT = "checkpoint"  # as soon as there is a new checkpoint
    NEVER = "never"  # the round continues, and the node waits until it ends for another reason


class EndKind(str, Enum):
    """The kind of a job's end, as users know it: `--requeue-on` takes some of these names."""

    FINISHED = "finished"
    TIME_LIMIT = "time-limit"
    PREEMPTION = "preemption"
    FAILURE = "failure"
    NODE_FAILURE = "node-failure"
    STOPPED = "stopped"  # by a user, or because of a mistake


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
    REQUEUED = "requeue"  # not by hpclaunch
    NOTICE = "notice"  # a signal, or `hpclaunch notice`: the workers have saved and exited
    TIME_LIMIT = "time limit"
    USER = "user"
    USAGE = "wrong usage"
    GROWTH = "more nodes"
    PROGRAM = "exit code"
    DONE = "done"
    OTHER = "other"


class Origin(str, Enum):
    """The origin of a job's end, set where the end is decided. `core/ending/table.py` lists the
    consequences of each.
    """

    DONE = "done"  # all workers ended with 0
    FAILURE = "failure"  # of the workers
    TIME_LIMIT = "time limit"
    PREEMPTION = "preemption"
    REQUEUE = "requeue"  # not by hpclaunch
    NOTICE = "notice"  # the workers exited after a notice or signal from a user
    DRAIN = "drain"  # the workers exited because Slurm drains a node
    NODE_LOST = "node lost"  # too few are left
    NODE_UNFIT = "node unfit"  # too few are left
    HEAD_LOST = "head lost"  # or never heard
    ABSENT = "absent"  # agents were never heard, or cannot be reached
    STOP = "stop"  # hpclaunch stop
    SIGNAL = "signal"  # sent by a user, or by Slurm when a job is cancelled
    SIGTERM = "sigterm"  # replaced by another origin once Slurm has reported what it means
    USAGE = "usage"  # a mistake of the user
    TROUBLE = "trouble"  # any other trouble of an agent


REQUEUED_ENDS = (EndKind.TIME_LIMIT, EndKind.PREEMPTION, EndKind.NODE_FAILURE)


@value(frozen=True)
class Requeueing:
    """The rule for another run of the job from its newest checkpoint. Slurm requeues the job, or
    starts the next element of its array.
    """

    on: tuple[EndKind, ...] = ()
    most: int = 0  # runs after the first one
    before: int = 0  # runs before this one
    is_chain: bool = False  # the runs are the elements of an array


@value(frozen=True)
class Job:
    """The settings of a job: the same on all agents, from the start."""

    places: tuple[Place, ...]
    most: int = 0  # the most nodes of a round, the others being spares; 0: all nodes
    fewest: int = 0  # the fewest nodes of a round; 0: no fewer than `most`
    grow: Grow = Grow.NEVER
    max_restarts: int = 3
    gpus_per_worker: int = 1
    isolate: bool = False  # every worker sees its own GPUs only, even if no GPU is shared
    health: bool = False  # check the nodes' health before every round
    replaces_stragglers: bool = False  # spares take the places of slow nodes
    saves: bool = False  # the script saves checkpoints in a known directory
    local: bool = False  # that directory is a different one on each node
    stages: bool = False  # the script saves in memory, from where checkpoints are copied there
    slurm_id: str = ""  # Slurm's job id; "" without Slurm
    notice_signal: int = 0  # the signal that gives workers notice; 0: the one the script handles
    requeueing: Requeueing = Requeueing()
    first_round: int = 0  # this run's first round: its number continues those of earlier runs
    timing: Timing = DEFAULTS
    elects: bool = True  # a lost head is replaced; False: the job ends with the first head

    @property
    def nodes(self) -> int:
        return nodes_of(self.places)

    @property
    def alone(self) -> bool:
        return len(self.places) == 1

    @property
    def stages_together(self) -> bool:
        """Whether the script saves in the memory of several nodes."""
        return self.stages and not self.alone

    @property
    def may_end(self) -> bool:
        """Whether Slurm may end the job, and the workers are to get notice of that."""
        return bool(self.slurm_id and self.timing.notice)


@value(frozen=True)
class StagerPlace:
    """The place of an agent's stager (`system/staging`) in the network."""

    index: int  # of the agent
    host: str
    address: str  # at which the other nodes reach its node
    port: int
    head_address: str  # at which it reaches the head's node


@value(frozen=True)
class Share:
    """The GPUs of one worker."""

    gpus: tuple[int, ...]  # positions among the GPUs of its task
    sharers: int = 1  # the number of workers that have these GPUs, including this one
    leads: bool = True  # this worker is the first of them


@value(frozen=True)
class Shares:
    """The GPUs of one agent's workers."""

    of: tuple[Share, ...] = ()  # worker by worker; empty if the task has no GPUs
    isolated: bool = False  # each worker sees its own GPUs only, as device 0, and LOCAL_RANK is 0


NO_SHARES = Shares()


@value(frozen=True)
class Assignment:
    """The part of one agent in a round: its workers, and the values for their environment."""

    round: int
    restarts: int  # TORCHELASTIC_RESTART_COUNT, the same for every rank
    first_rank: int  # its workers are first_rank .. first_rank + nproc - 1
    nproc: int
    world_size: int
    first_local_rank: int  # other than 0 only if several agents share a node
    local_world_size: int
    group_rank: int  # the position of its node among those of the round
    group_world_size: int
    layout: str  # the number of workers of each node as Slurm writes it: "2(x3),1"
    address: str  # where the others reach this agent
    store_address: str
    store_port: int
    hosts_store: bool
    checkpoint: str  # "": start from the beginning
    shares: Shares = NO_SHARES
    peers: tuple[str, ...] = ()  # for the host of the store: the networks of the round's nodes
    hosts: str = ""  # all hosts of the round by rank, in Slurm's form: "n3,n[1-2]"
    stages: bool = False  # its workers save in memory


# (begun, ended or None, number of ranks) of each round; times are wall clock, in ns
Rounds = tuple[tuple[int, int | None, int], ...]


@value(frozen=True)
class Look:
    """A checkpoint that all agents of the next round must look at before the round begins."""

    number: int  # unique among the Looks of one start of a head
    path: str
    mark: str  # differs for every save
    size: int  # bytes of its files
    time: int  # when it was saved: the time of its decisive file, in ns
    share: tuple[int, int] = (0, 0)  # (k, n): read the k-th of n shares of its bytes; n = 0: none
    rounds: Rounds = ()  # the rounds in which it was saved, as the head knows them
    staged: bool = False  # each agent looks at its own copy in memory

    def is_answered(self, seen: Seen) -> bool:
        """Return whether `seen` is the answer. A restarted head counts from 1 again."""
        return (seen.number, seen.mark, seen.share) == (self.number, self.mark, self.share)


@value(frozen=True)
class Seen:
    """An agent's answer to a Look. Without `missing` and `damage`, it sees the same as the head."""

    number: int  # as in the Look
    mark: str  # likewise
    share: tuple[int, int] = (0, 0)  # likewise
    missing: str = ""  # why the agent does not see the checkpoint, perhaps only for a moment
    damage: str = ""  # which bytes differ from what was written


class Culprit(str, Enum):
    """The kind of process that failed."""

    WORKER = "worker"
    FORK_SERVER = "fork server"  # it was killed, and its workers with it
    STORE = "store"  # where the ranks meet
    HANG = "hang"  # a worker that is alive, but no longer does anything


NO_RANK = -1  # no worker: another process failed, or no rank is known to be at fault


@value(frozen=True)
class WorkerExit:
    """The exit of one worker, or of the round's store, as its agent reports it."""

    rank: int  # NO_RANK for the store
    code: int  # 128 + n for signal n, as in a shell
    signal: int  # 0 if it exited by itself
    age: float  # seconds between the exit and the sending of this report
    stopped: bool  # its agent was already stopping it: a consequence, never the cause
    tail: str  # the last lines it wrote
    culprit: Culprit = Culprit.WORKER


@value(frozen=True)
class Failure:
    """The failure of a worker, or of the round's store."""

    round: int
    rank: int  # NO_RANK for the store
    host: str
    code: int
    signal: int
    at: float  # on the head's clock
    tail: str  # the last lines it wrote
    stopped: bool = False  # as in WorkerExit
    culprit: Culprit = Culprit.WORKER

    def moved(self, by: float) -> Failure:
        """Return the same failure for a clock that is `by` seconds ahead."""
        return replace(self, at=self.at + by)


@value(frozen=True)
class Trouble:
    """The reason why an agent cannot, or can no longer, take part. It ends the job."""

    origin: Origin  # USAGE, or TROUBLE
    reason: str


class Sequel(str, Enum):
    """The last action of the agents, once the job is over for them."""

    LEAVE = "leave"
    REQUEUE = "requeue"  # the head asks Slurm to requeue the job, and all agents wait for that
    LINGER = "linger"  # wait for the preemption: it requeues only a job that still runs
    NEXT = "next"  # leave; the next element of the array continues
    END_CHAIN = "end chain"  # the head cancels the elements of the array that have not begun

    @property
    def is_requeued(self) -> bool:
        """Whether Slurm starts this job again."""
        return self in (Sequel.REQUEUE, Sequel.LINGER)

    @property
    def is_followed(self) -> bool:
        """Whether another run continues this one."""
        return self.is_requeued or self is Sequel.NEXT


@value(frozen=True)
class Leftover:
    """A process that a worker has started, and that has outlived it."""

    pid: int
    program: str
    rank: int | None = None  # the worker's; None if it is not known


@value(frozen=True)
class Verdict:
    """The end of the job, the same for every agent."""

    code: int  # the exit code
    reason: str  # one line, without the name hpclaunch
    origin: Origin
    cause: Failure | None = None  # the first failure of the last round
    consequences: tuple[Failure, ...] = ()  # the later ones, without their output
    restarts: int = 0
    signum: int = signal.SIGTERM  # the signal for workers that still run
    sequel: Sequel = Sequel.LEAVE
    left: float = 0.0  # with LINGER: seconds until Slurm ends the job

    def moved(self, by: float) -> Verdict:
        """Return the same verdict for a clock that is `by` seconds ahead."""
        cause = None if self.cause is None else self.cause.moved(by)
        later = tuple(failure.moved(by) for failure in self.consequences)
        return replace(self, cause=cause, consequences=later)


class Doing(IntEnum):
    """The activities of workers. The numbers are positions in `Spent.times`."""

    START = 0  # they have not started yet
    IMPORTS = 1  # until init_process_group, or until they make an optimizer
    RENDEZVOUS = 2  # they are in init_process_group
    LOADING = 3  # between that and the first step
    TRAINING = 4
    SAVING = 5
    NOTHING = 6  # they have ended


@value(frozen=True)
class Spent:
    """The time that an agent's workers have spent in a round, as a mean of them."""

    times: tuple[int, ...] = ()  # milliseconds for each Doing up to SAVING; () if not known
    doing: Doing = Doing.START  # what they do now: all further time belongs to it
    # Milliseconds since the round began here; None unless the agent asks others to lead.
    elapsed: int | None = None


NO_STEP = -1


@value(frozen=True)
class Tally:
    """The restarts that the job has used, and the values that decide whether there is another one.

    Every configuration contains it, for the next head. To keep it small, texts that are only
    compared are kept as checksums.
    """

    restarts: int = 0  # of the whole job
    spent: int = 0  # restarts since the last progress
    checkpoint: int = 0  # checksum of the mark of the checkpoint that the last round began with
    saved: int = 0  # the newest checkpoint that a round began with: when it was saved, in ns
    step: int = NO_STEP  # the highest step that a round began with
    scale: int = 0  # checksum of that step's scale: steps of different scales cannot be compared
    failed: bool = False  # the last round failed, and no other has begun
    last_line: int = 0  # checksum of the last line that the failed worker wrote
    host: str = ""  # the host of the last failure
    failures_in_a_row: int = 0  # on that host, since the last progress
    outages_in_a_row: int = 0  # failures in a row of the file system or the network
    pending_verdict: Verdict | None = None  # the end of the job, unless a new checkpoint is found
    failed_loads: int = 0  # rounds in a row that failed while they loaded `checkpoint`
    avoided: tuple[int, ...] = ()  # checksums of the marks of rejected checkpoints
    progress_above: int = NO_STEP  # a checkpoint is progress only beyond this step
    first_saved: int = -1  # `saved` of the first round; 0: it had no checkpoint; -1: not begun
    first_step: int = NO_STEP  # `step` of the first round
    first_scale: int = 0  # `scale` of the first round


NOTHING_SPENT = Tally()


@value(frozen=True)
class Progress:
    steps: tuple[int, ...]  # optimizer steps of each rank, or one number if all are equal
    still: float  # seconds since the last sign of life of any worker; CPU time does not count
    busy: bool  # a worker uses the CPU
    limit: float  # the value of `still` that means a hang; 0: none does, as far as known
    longest: float = 0.0  # the same if the culprit uses the CPU, or no restart is left
    usual: float = 0.0  # the longest time between two recent steps; 0: not known
    save: float = 0.0  # the longest time between two steps in which a worker has saved

    @property
    def suspected(self) -> bool:
        return 0 < self.limit <= self.still


@value(frozen=True)
class RankState:
    """The position of one rank in its program, as its agent found it."""

    rank: int
    place: str = ""  # in the script: "loader.py:88, next_batch"; "" if it is not known
    state: str = ""  # of its process, as in proc(5): "S" sleeps, "D" cannot be interrupted
    busy: bool = False  # it uses the CPU
    debugged: bool = False
    # (process group, number, name) of the collective that it waits in; None if it waits in none.
    # With no source but its stack, the group is "" and the number 0.
    waits: tuple[str, int, str] | None = None


@variant(frozen=True)
class Evidence:
    """The states of an agent's workers when a hang is suspected."""

    ranks: tuple[RankState, ...]


EACH_ITS_NEXT = 0  # the step of a notice that each rank takes before its own next step


@value(frozen=True)
class StepNotice:
    """A notice that all ranks of a round take before the same step: a signal, or the end is near.

    The notice is offered until all agents have accepted it; meanwhile a rank that reaches its step
    waits. Then it is given, or withdrawn. An agent accepts only if none of its ranks has begun that
    step: so either all ranks take the notice before the step, or none does.
    """

    number: int  # grows with every offer of a head
    step: int  # of the optimizer that has made the most steps; or EACH_ITS_NEXT
    signum: int  # 0: the one that the script has a handler for
    given: bool = False


@value(frozen=True)
class NoticeAnswer:
    """The answer of an agent to the offer of a StepNotice."""

    number: int
    accepted: bool
    busy: bool = False  # its workers have not reached the step of an earlier notice yet
    steps: tuple[int, ...] = ()  # the fewest and the most that its ranks have begun; () if none
    taken: int = 0  # the number of the last notice that all of its ranks have taken
    given: int = 0  # the number of the last notice that was given here
    last: bool = False  # its ranks have taken that notice and ended, without another step
    unheard: int = 0  # the number of the last notice whose signal none of its workers handles


@value(frozen=True)
class RankVitals:
    """The activity of one worker, and the resources that it and the processes below it use."""

    rank: int
    phase: str  # "start", "rendezvous", "first step", "step", "evaluation", "save", "end", "other"
    steps: int  # steps in this round, of its optimizer or as reported by the script
    step: int  # the step by the script's own count; 0 if it does not report one
    cpu: float  # CPUs used since the last vitals, or else since it was started
    memory: int  # bytes that are resident; shared ones are counted for each process


@variant(frozen=True)
class Vitals:
    """The activity of an agent's workers and GPUs, and their use of resources."""

    ranks: tuple[RankVitals, ...]
    gpus: tuple[GpuUse, ...] = ()  # in the order of its GPUs; () where nobody reads them


class Request(str, Enum):
    """The requests of a user to a running job."""

    STOP = "stop"  # end the job gracefully
    RESTART = "restart"  # end the round, and begin the next from the newest checkpoint
    NOTICE = "notice"  # give the workers notice now


class Phase(str, Enum):
    """The state of an agent's worker group."""

    PREPARING = "preparing"  # no workers, and not ready for a round
    IDLE = "idle"  # no workers, and ready for the next round
    RUNNING = "running"
    STOPPING = "stopping"  # its workers are being stopped
    STUCK = "stuck"  # some of its workers, or their leftovers, survive SIGKILL
    DONE = "done"  # all its workers have ended with code 0
    ENDED = "ended"  # it has the verdict and leaves


class Goal(str, Enum):
    """The goals that the head sets for an agent."""

    WAIT = "wait"
    RUN = "run"
    STOP = "stop"
    END = "end"


@value(frozen=True)
class Arrivals:
    """The times at which the workers of one agent began collectives of a process group."""

    group: str  # backend and name, as torch has them: "gloo:0"
    members: int  # the number of these workers in it
    base: float  # seconds
    numbers: tuple[int, ...]  # the collectives' numbers, ascending
    usual: tuple[int, ...]  # for each: when half of the workers had begun it, in us after `base`
    late: tuple[int, ...]  # for each: how much later the last worker began it, in microseconds
    last: tuple[int, ...]  # for each: the rank of that worker
    on_gpus: bool = False  # `numbers` are steps, which stand for collectives on GPUs


@value(frozen=True)
class Load:
    """The load of a worker and the processes below it: shares of the time since the last sample."""

    rank: int
    cpu: float  # their CPU time; more than 1 with several threads
    queued: float  # the wait for a CPU, of the thread that waited the longest
    throttled: float  # the time in which the quota of their cgroup was used up
    blocked: float  # the time in which one of them waited for storage
    clock: float = 0.0  # GHz of the CPU that the worker ran on; 0: not known


@variant(frozen=True)
class Sample:
    """The pace of an agent's workers."""

    pace: float  # seconds for a step, since the last sample; 0: they make none
    blind: bool = False  # torch does not record the collectives of their process groups
    arrivals: tuple[Arrivals, ...] = ()
    loads: tuple[Load, ...] = ()
    # The addresses of other nodes that its workers send to, with the round trip in seconds.
    ways: tuple[tuple[str, float], ...] = ()
    ahead: float = 0.0  # seconds by which the head's clock is ahead of this agent's
    error: float = 0.0  # the greatest possible error of `ahead`, in seconds


class QueryKind(str, Enum):
    """The kind of a question to an agent's workers. The body of its answer has the same name."""

    EVIDENCE = "evidence"
    SAMPLE = "sample"
    VITALS = "vitals"

    @property
    def is_urgent(self) -> bool:
        """Whether the head waits for the answer before it decides something."""
        return self is not QueryKind.VITALS


@value(frozen=True)
class Query:
    """A question to an agent's workers."""

    kind: QueryKind
    number: int  # unique among the queries of one head


Body: TypeAlias = Evidence | Sample | Vitals


@value(frozen=True)
class Answer:
    query: Query
    body: Body
