"""The facts of one node: each agent records those that it finds itself, be it the head or not.

`host` is the node. Where a program has explained a failure, `why` is its text for people.
"""

from __future__ import annotations

from enum import Enum

from .process_kinds import ProcessKind
from .values import field, value

# The command line


class LaunchNoteKind(str, Enum):
    """Something that the user may not expect of a launch. The comment names the details."""

    NODES = "nodes"  # --nnodes asked for other numbers than Slurm has given: asked, given
    SPARES = "spares"  # it asked for fewer nodes than there are: asked, spares, nodes
    NO_KILL = "no kill"  # a node that fails ends the whole step
    NODE_RANK = "node rank"  # --node-rank is not Slurm's: asked, given
    LOCAL_ADDR = "local address"  # --local-addr is no address of this host: asked
    ENDPOINT = "endpoint"  # the meeting point is not on the first node: option, asked
    MACHINES = "machines"  # without Slurm, several machines are waited for: asked, most, fewest
    STANDALONE = "standalone"  # each task of the step trains on its own: tasks
    NO_VARIABLES = "no variables"  # a task of a step has none of Slurm's variables: step
    NPROC = "nproc"  # several tasks of a node start several workers each: tasks, nproc
    NO_GPU = "no gpu"  # the number of workers is that of the CPUs: cpus
    CPUS = "cpus"  # there are fewer CPUs than workers: workers, cpus
    CORES = "cores"  # a worker with a GPU has few cores: cores
    PYTHON = "python"  # an interpreter was named before the script: command
    WITHOUT_EFFECT = "without effect"  # options, each with the reason
    LOGS_IN_USE = "logs in use"  # another launch uses the log directory: asked, directory
    LOGS_FOREIGN = "logs foreign"  # it belongs to somebody else: directory
    LOGS_TEMPORARY = "logs temporary"  # nothing can be written there: why, directory


@value(frozen=True)
class LaunchNote:
    """Something that the user may not expect, as the command line and Slurm have it."""

    host: str
    kind: LaunchNoteKind
    details: dict[str, str | int] = field(default_factory=dict)


# The processes beside the agent


@value(frozen=True)
class HelperEnded:
    """A process of the agent has ended before it was asked to."""

    host: str
    kind: ProcessKind
    was_killed: bool  # from outside; else it has failed
    is_replaced: bool


@value(frozen=True)
class ProcessContinued:
    """Somebody had stopped a process with a signal, and it was made to continue."""

    host: str
    kind: ProcessKind


@value(frozen=True)
class CheckpointSearchStalled:
    """The process that searches for checkpoints does not answer, and is replaced."""

    host: str
    where: str  # --checkpoint-dir


@value(frozen=True)
class CheckpointDirSuggested:
    """Without --checkpoint-dir, the script has saved a checkpoint itself."""

    host: str
    where: str  # what --checkpoint-dir could be
    path: str  # of the checkpoint


# The log directory


class LogTroubleKind(str, Enum):
    FILES = "files"  # the launcher's own files cannot be written: names, reason
    DISK = "disk"  # the disk is full, and what workers write is lost: directory
    DUPLICATES = "duplicates"  # lines are no longer duplicated to a file: its path, reason
    STALLED = "stalled"  # so many lines of the console were dropped


@value(frozen=True)
class LogTrouble:
    """Something could not be written, or not shown."""

    host: str
    kind: LogTroubleKind
    what: str
    why: str = ""


# The start of workers


@value(frozen=True)
class OutputMoved:
    """The disk of the log directory is full, read-only or broken: a round's files are in a
    temporary directory.
    """

    host: str
    round: int
    directory: str
    why: str


@value(frozen=True)
class TemplateReplaced:
    """The process from which workers are forked has ended, and is replaced."""

    host: str
    why: str


@value(frozen=True)
class ColdStart:
    """Workers are not forked from the template, although that was wanted."""

    host: str
    why: str


class ColdCause(str, Enum):
    """Why a forked worker has to become a new interpreter."""

    VARIABLE = "variable"  # it sets a variable that torch has read
    MODULE = "module"  # it imports another module of the same name


@value(frozen=True)
class WorkerTurnedCold:
    """A worker has become a new interpreter, as those of later rounds are from the start."""

    host: str
    cause: ColdCause
    name: str  # of the variable or module
    file: str
    line: int
    is_impossible: bool  # it cannot: this happens in a process that a worker has forked


@value(frozen=True)
class PreloadSkipped:
    """The template does without a module of --preload."""

    host: str
    module: str
    why: str


@value(frozen=True)
class SignalUnhandled:
    """A signal is not passed on to workers that have no handler for it."""

    host: str
    signal: int
    ranks: tuple[int, ...]


# The health of the node


@value(frozen=True)
class HealthWarning:
    """Something is wrong with the node, and workers may run on it all the same."""

    host: str
    check: str  # the GPU or file system, and what is wrong there, without figures
    found: str
    advice: str


@value(frozen=True)
class XidReported:
    """The driver has reported an error of a program on a GPU."""

    host: str
    rank: int  # whose program it is; NO_RANK: not known
    gpu: str
    xid: int
    why: str


# What others see of the job


@value(frozen=True)
class MetricsFailed:
    """--metrics has no effect for now."""

    host: str
    target: str  # the file or directory, or the port and address
    why: str


class NotifyTrouble(str, Enum):
    """Faults of the command of --notify."""

    FAILED = "failed"
    INTERRUPTED = "interrupted"  # the event may be lost
    UNFINISHED = "unfinished"  # it still ran some time after the end of the job
    SLOW = "slow"  # events were dropped


@value(frozen=True)
class NotifyFailed:
    """The command of --notify has failed, or may not have run for every event."""

    host: str
    trouble: NotifyTrouble
    why: str = ""  # FAILED: the reason
    limit: float = 0.0  # UNFINISHED: seconds that the agent waited at the end of the job
    dropped: int = 0  # SLOW: the number of events


# The network


@value(frozen=True)
class PortTaken:
    """The user's port is in use, so the agent listens on another one."""

    host: str
    wanted: int
    port: int


@value(frozen=True)
class MessageIgnored:
    """Something was received that is no message of this version."""

    host: str
    address: str  # from where
    why: str


# MPS


@value(frozen=True)
class MpsStarted:
    """MPS serves the workers. Only the first agent records it."""

    host: str
    gpus: tuple[tuple[str, ...], ...]  # for each daemon the names of its GPUs


@value(frozen=True)
class ForeignMpsAwaited:
    """A daemon that hpclaunch has not started serves another user first."""

    host: str
    why: str


@value(frozen=True)
class MpsBypassed:
    """Workers use their GPU without MPS, so that they take turns on it."""

    host: str
    ranks: tuple[int, ...]


@value(frozen=True)
class TimeSlices:
    """Workers share these GPUs without MPS."""

    host: str
    gpus: tuple[str, ...]
    why: str
    advice: str = ""


@value(frozen=True)
class ForeignMpsUsed:
    """A daemon that hpclaunch has not started serves the workers."""

    host: str
    directory: str  # of its pipes


@value(frozen=True)
class ForeignMpsCrowded:
    """An MPS daemon that hpclaunch has not started may have no room for all workers."""

    host: str
    directory: str
    present: int  # clients
    room: int  # for clients beside the workers


@value(frozen=True)
class ForeignMpsRefused:
    """An MPS daemon that hpclaunch has not started is not trusted, and so not used."""

    host: str
    why: str


@value(frozen=True)
class FewConnections:
    """With this value of CUDA_DEVICE_MAX_CONNECTIONS, fewer workers fit on a GPU."""

    host: str
    connections: int
    most: int  # the largest value that costs no clients


# Another run


class AnotherRunKind(str, Enum):
    LINGERS = "lingers"  # Slurm starts the job again once it has preempted it
    BY_SCRIPT = "by script"  # there is no scontrol, so the job's script asks for it
    FOLLOWS = "follows"  # Slurm is asked
    REFUSED = "refused"
    CHAIN_STAYS = "chain stays"  # the rest of an array could not be cancelled


@value(frozen=True)
class AnotherRun:
    """The fate of the next run. It is only shown: the log service has ended by then."""

    kind: AnotherRunKind
    job: str  # as Slurm's commands take it
    run: int = 0  # FOLLOWS: the number of the run that follows
    why: str = ""  # REFUSED, CHAIN_STAYS: Slurm's reason


# What is known before any daemon is started, and so to `hpclaunch doctor` as well
MpsNote = TimeSlices | ForeignMpsUsed | ForeignMpsRefused | FewConnections

NodeFact = (
    LaunchNote
    | HelperEnded
    | ProcessContinued
    | CheckpointSearchStalled
    | CheckpointDirSuggested
    | LogTrouble
    | OutputMoved
    | TemplateReplaced
    | ColdStart
    | WorkerTurnedCold
    | PreloadSkipped
    | SignalUnhandled
    | HealthWarning
    | XidReported
    | MetricsFailed
    | NotifyFailed
    | PortTaken
    | MessageIgnored
    | MpsStarted
    | ForeignMpsAwaited
    | MpsBypassed
    | ForeignMpsCrowded
    | MpsNote
)
