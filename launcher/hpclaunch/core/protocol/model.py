"""The nouns of a job: frozen values that events, messages and effects carry.

Times are seconds on the monotonic clock of the agent that holds the value; nothing here is ever
compared with a time of another machine.
"""

from __future__ import annotations

import signal
import zlib
from dataclasses import dataclass
from enum import Enum

from .timing import DEFAULTS, Timing

HEAD = 0  # the index of the first head: the first agent in Slurm's order
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # end the job in order
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)  # are passed on to the workers

PLACEHOLDER = "{checkpoint}"  # in arguments to append: the path to resume from

EXIT_FAILED = 1  # in place of torchrun, which has one code for all failures
EXIT_LOST = 1  # the job ended because an agent, not a worker, was lost
EXIT_USAGE = 2
EXIT_UNFIT = 3  # of a worker of the preflight: its node is not fit


@dataclass(frozen=True, slots=True)
class Place:
    """One agent's place in the job, known from Slurm before anybody has spoken."""

    index: int  # position in Slurm's order, 0-based; the head is the first
    node: int  # which of the step's hosts, 0-based
    host: str


def nodes_of(places: tuple[Place, ...]) -> int:
    return 1 + max(place.node for place in places)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Where an agent stands, and with whom: from Slurm, or from the command line without it."""

    name: str  # "<job>.<step>", or "local-<time>-<pid>" without Slurm
    identity: str  # what the keys derive from: differs for every start of a job
    places: tuple[Place, ...]
    index: int
    endpoint: tuple[str, int] | None = None  # the head's host and port, where the user named them
    seated: bool = True  # False: the head gives this agent its index, and `index` only holds one

    @property
    def label(self) -> str:
        """Tells the files of this agent from those of others."""
        return str(self.index) if self.seated else self.places[self.index].host

    @property
    def alone(self) -> bool:
        return len(self.places) == 1

    @property
    def nodes(self) -> int:
        return nodes_of(self.places)

    @property
    def tasks_here(self) -> int:
        """Agents on this agent's node, itself included."""
        mine = self.places[self.index].node
        return sum(place.node == mine for place in self.places)


class Grow(str, Enum):
    """When a node that has come, or come back, ends the round, to take part in the next one."""

    NOW = "now"
    CHECKPOINT = "checkpoint"  # as soon as a new one is there
    NEVER = "never"  # it takes part when the round has ended for another reason


@dataclass(frozen=True, slots=True)
class Job:
    """What every agent of a job knows from the start; the same on all of them."""

    places: tuple[Place, ...]
    most: int = 0  # nodes that take part at once, the others are spares; 0: all
    fewest: int = 0  # of these, with how many it goes on; 0: with no fewer
    grow: Grow = Grow.NEVER
    max_restarts: int = 3
    gpus_per_worker: int = 1
    isolate: bool = False  # every worker sees its own GPUs only, whoever has the others
    health: bool = False  # nodes are looked at before every round
    preflight: bool = False  # the first round measures them
    saves: bool = False  # there is a directory for checkpoints
    local: bool = False  # and each node has its own
    slurm_id: str = ""
    timing: Timing = DEFAULTS
    one_head: bool = False  # no other agent can be reached by all should it be lost

    @property
    def nodes(self) -> int:
        return nodes_of(self.places)

    @property
    def alone(self) -> bool:
        return len(self.places) == 1


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker has of its task's GPUs."""

    gpus: tuple[int, ...]  # positions among those of its task
    sharers: int = 1  # workers of this node that have the same ones, itself included
    leads: bool = True  # it is the first of these


@dataclass(frozen=True, slots=True)
class Shares:
    """What the workers of one agent have; `of` is empty where GPUs do not matter."""

    of: tuple[Share, ...] = ()
    isolated: bool = False  # each worker sees its own only, as device 0, and LOCAL_RANK is 0


NO_SHARES = Shares()


@dataclass(frozen=True, slots=True)
class Assignment:
    """One agent's part in a round: which workers it starts and what they are told."""

    round: int
    restarts: int  # TORCHELASTIC_RESTART_COUNT, the same for every rank
    first_rank: int  # its workers are first_rank .. first_rank + nproc - 1
    nproc: int
    world_size: int
    first_local_rank: int  # not 0 where several agents share a node
    local_world_size: int
    group_rank: int  # which node of the round
    group_world_size: int
    layout: str  # workers of each node as Slurm writes it, "2(x3),1"
    address: str  # of this agent, as the others reach it
    store_address: str
    store_port: int
    hosts_store: bool
    checkpoint: str  # "" for a start from the beginning
    shares: Shares = NO_SHARES  # of the GPUs, worker by worker
    preflight: bool = False  # these workers measure the nodes, and are not the user's


# (begun, ended or None, ranks) of each; wall clock, in ns
Rounds = tuple[tuple[int, int | None, int], ...]


@dataclass(frozen=True, slots=True)
class Look:
    """A checkpoint that all agents of the next round look at before it begins."""

    path: str
    mark: str  # differs for every save
    size: int  # bytes of its files
    time: int  # of the file that decides, in ns
    share: tuple[int, int] = (0, 0)  # (k, n): read the k-th of n shares of its bytes; n = 0: none
    rounds: Rounds = ()  # in which it was saved, as the head knows them


@dataclass(frozen=True, slots=True)
class Seen:
    """What an agent has seen of it; neither `missing` nor `damage`: the same as the head."""

    mark: str
    share: tuple[int, int] = (0, 0)  # that was asked for
    missing: str = ""  # why it is not there, which may be so for a moment only
    damage: str = ""  # it is there, and these bytes are not what was written


class Culprit(str, Enum):
    """Which process of a round ended, and the round with it."""

    WORKER = "worker"
    FORK_SERVER = "fork server"  # was killed, and its workers with it
    STORE = "store"  # where the ranks meet; it has no rank


NO_RANK = -1  # of a process that is no worker


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How one worker, or the round's store, ended, as its agent reports it."""

    rank: int  # NO_RANK for the store
    code: int  # 128 + n for signal n, as a shell has it
    signal: int  # 0 when it exited by itself
    age: float  # seconds between the exit and the sending of this report
    stopped: bool  # it ended after its agent had asked it to: never a cause
    tail: str  # the last lines it wrote
    culprit: Culprit = Culprit.WORKER


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker, or a store, that failed, on the head's clock."""

    round: int
    rank: int  # NO_RANK for the store
    host: str
    code: int
    signal: int
    at: float
    tail: str
    stopped: bool = False  # it was being stopped already: a consequence, never a cause
    culprit: Culprit = Culprit.WORKER


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why an agent cannot take part, or can no longer."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the job ended: the same for every agent."""

    code: int
    reason: str  # one line, without the name of the program
    cause: Failure | None = None  # the first failure of the last round
    consequences: tuple[Failure, ...] = ()  # the later ones, without their output
    restarts: int = 0


def checksum(text: str) -> int:
    """A few bytes in place of a text that is only compared, and goes to every agent; 0 for ""."""
    return zlib.crc32(text.encode(errors="surrogateescape"))


NO_STEP = -1


@dataclass(frozen=True, slots=True)
class Tally:
    """How many restarts the job has used, and what decides whether there is another one.

    All of it goes to the next head, in every configuration. To keep that small, texts that are only
    compared are kept as checksums.
    """

    restarts: int = 0  # of the whole job
    spent: int = 0  # restarts since the last progress
    checkpoint: int = 0  # checksum of the mark of the checkpoint that the last round began with
    saved: int = 0  # when the newest checkpoint was saved that a round began with, in ns
    step: int = NO_STEP  # the highest step that a round began with
    scale: int = 0  # checksum of that step's scale: steps of different scales cannot be compared
    failed: bool = False  # the last round failed, and no other has begun
    last_line: int = 0  # checksum of the last line of the worker that made it fail
    host: str = ""  # where the last failure was
    failures_in_a_row: int = 0  # on that host, since the last progress
    pending_verdict: Verdict | None = None  # how the job ends, unless there is a new checkpoint
    failed_after: float = 0.0  # seconds from the beginning of the last round to its failure
    failed_loads: int = 0  # rounds in a row that failed while they resumed from that checkpoint
    avoided: tuple[int, ...] = ()  # checksums of the marks of rejected checkpoints
    progress_above: int = NO_STEP  # a checkpoint is progress only beyond this step


NOTHING_SPENT = Tally()


class Phase(str, Enum):
    """Where an agent stands in its round."""

    PREPARING = "preparing"  # no workers, and not ready for any
    IDLE = "idle"  # no workers; ready for the next round
    RUNNING = "running"
    STOPPING = "stopping"  # its workers are being ended
    STUCK = "stuck"  # some of its workers survive SIGKILL
    DONE = "done"  # all its workers ended with 0
    ENDED = "ended"  # it has the verdict and is leaving


class Goal(str, Enum):
    """What the head wants of an agent."""

    WAIT = "wait"
    RUN = "run"
    STOP = "stop"
    END = "end"
