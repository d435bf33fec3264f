"""The facts of one node: each agent records those that it finds itself, whether or not it leads.

`host` is the node. `why` is a text for people: often the error message of another program.
"""

from __future__ import annotations

from enum import Enum

from .process_kinds import ProcessKind
from .values import field, value

# The command line


class LaunchNoteKind(str, Enum):
    """Something that the user may not expect of a launch. The comments list its `details`."""

    NODES = "nodes"  # --nnodes differs from what Slurm has allocated: asked, given
    SPARES = "spares"  # --nnodes is less than the allocated nodes: asked, spares, nodes
    NO_KILL = "no kill"  # a node that fails ends the whole step
    NODE_RANK = "node rank"  # --node-rank is not Slurm's: asked, given
    LOCAL_ADDR = "local address"  # --local-addr is not an address of this host: asked
    ENDPOINT = "endpoint"  # the rendezvous endpoint is not on the first node: option, asked
    MACHINES = "machines"  # without Slurm, the job waits for machines: asked, most, fewest
    STANDALONE = "standalone"  # each task of the step trains on its own: tasks
    NO_VARIABLES = "no variables"  # this task has none of Slurm's variables: step
    NPROC = "nproc"  # several tasks of a node start several workers each: tasks, nproc
    NO_GPU = "no gpu"  # there is one worker per CPU: cpus
    CPUS = "cpus"  # there are fewer CPUs than workers: workers, cpus
    CORES = "cores"  # a worker with a GPU has few cores: cores
    PYTHON = "python"  # an interpreter was named before the script: command
    TORCHRUN = "torchrun"  # the Python of torchrun in PATH is not known: torchrun, python
    WITHOUT_EFFECT = "without effect"  # options, each with the reason
    LOGS_IN_USE = "logs in use"  # another launch uses the log directory: asked, directory
    LOGS_FOREIGN = "logs foreign"  # the log directory belongs to another user: directory
    LOGS_TEMPORARY = "logs temporary"  # the log directory is not writable: why, directory


@value(frozen=True)
class LaunchNote:
    """Something that the user may not expect, found in the command line or Slurm's variables."""

    host: str
    kind: LaunchNoteKind
    details: dict[str, str | int] = field(default_factory=dict)


# The processes beside the agent


@value(frozen=True)
class HelperEnded:
    """A process of the agent has ended unexpectedly."""

    host: str
    kind: ProcessKind
    was_killed: bool  # True: killed from outside; False: it failed
    is_replaced: bool


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


@value(frozen=True)
class CheckpointUnused:
    """The script seems not to load the checkpoint that it was to resume from."""

    host: str
    path: str  # of that checkpoint
    saved: str  # the name of one of a lower step, which was saved in this round


# Checkpoints in memory


@value(frozen=True)
class StageBegan:
    """--stage: the script saves in memory."""

    host: str
    where: str  # --checkpoint-dir
    directory: str  # where the script saves
    words: tuple[str, ...]  # of its arguments that name this directory now
    restored: str  # the checkpoint that was copied into memory; "" if there was none
    size: int  # its bytes
    seconds: float  # that the copy took


@value(frozen=True)
class StageDeleted:
    """--stage: another program has deleted the staging directory. It is made again."""

    host: str
    directory: str


@value(frozen=True)
class StageFetched:
    """The nodes of the next round have fetched a checkpoint from the memory of other nodes."""

    host: str
    size: int  # the bytes, of all nodes together
    seconds: float


@value(frozen=True)
class StageRefused:
    """--stage: the script saves on storage, since memory does not suffice, or in any case."""

    host: str
    where: str  # --checkpoint-dir
    why: str
    later: bool  # from the next round on


@value(frozen=True)
class StoringFailed:
    """A checkpoint could not be copied from memory to storage. It is tried again."""

    host: str
    path: str
    why: str


@value(frozen=True)
class StageAwaited:
    """The job waits until a checkpoint is in memory or, at its end, until all that was saved there
    is on storage.
    """

    host: str
    where: str  # --checkpoint-dir
    path: str  # the checkpoint that is being copied; "" if none is
    done: int  # bytes of it that were copied
    size: int  # all of its bytes
    waited: float
    is_restore: bool = False  # the wait is for a checkpoint from storage


@value(frozen=True)
class StageLost:
    """The job has ended, and something that was saved in memory is not on storage."""

    host: str
    where: str  # --checkpoint-dir
    missing: tuple[str, ...]  # paths on storage
    why: str


# The log directory


class LogTroubleKind(str, Enum):
    FILES = "files"  # the launcher's own files cannot be written: names, reason
    DISK = "disk"  # the disk is full, and the workers' output is lost: directory
    DUPLICATES = "duplicates"  # lines are no longer duplicated to a file: its path, reason
    STALLED = "stalled"  # messages for the console were dropped: their number


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
    """The template, from which workers are forked, has ended and is replaced."""

    host: str
    why: str


@value(frozen=True)
class ColdStart:
    """Workers start as new interpreters, although a warm start was wanted."""

    host: str
    why: str


class ColdCause(str, Enum):
    """The reason why a forked worker must become a new interpreter."""

    VARIABLE = "variable"  # it sets a variable that torch has read already
    MODULE = "module"  # it imports a module that has the same name as a preloaded one


@value(frozen=True)
class WorkerTurnedCold:
    """A worker has become a new interpreter. Workers of later rounds start as new interpreters."""

    host: str
    cause: ColdCause
    name: str  # of the variable or module
    file: str
    line: int
    is_impossible: bool  # the process is a fork of a worker, so it cannot become a new interpreter


@value(frozen=True)
class PreloadSkipped:
    """The template continues without a module of --preload."""

    host: str
    module: str
    why: str


@value(frozen=True)
class SignalUnhandled:
    """A signal is not forwarded to workers that have no handler for it."""

    host: str
    signal: int
    ranks: tuple[int, ...]


# The health of the node


@value(frozen=True)
class HealthWarning:
    """Something is wrong with the node, but workers may run on it."""

    host: str
    check: str  # the GPU or file system, and the kind of problem, without figures
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


# Metrics and notifications


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
    UNFINISHED = "unfinished"  # the command still ran some time after the end of the job
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
    """Something was received that is not a message of this version."""

    host: str
    address: str  # of the sender
    why: str


# MPS


@value(frozen=True)
class MpsStarted:
    """MPS daemons of hpclaunch serve the workers. Only the first agent records it."""

    host: str
    gpus: tuple[tuple[str, ...], ...]  # for each daemon the names of its GPUs


@value(frozen=True)
class ForeignMpsAwaited:
    """A foreign MPS daemon, not started by hpclaunch, serves another user first."""

    host: str
    why: str


@value(frozen=True)
class MpsBypassed:
    """Workers run without MPS, and so take turns on their GPU."""

    host: str
    ranks: tuple[int, ...]


@value(frozen=True)
class TimeSlices:
    """Workers share these GPUs by time slices, without MPS."""

    host: str
    gpus: tuple[str, ...]
    why: str
    advice: str = ""


@value(frozen=True)
class ForeignMpsUsed:
    """A foreign MPS daemon serves the workers."""

    host: str
    directory: str  # of its pipes


@value(frozen=True)
class ForeignMpsRefused:
    """A foreign MPS daemon is not trusted or cannot be asked, and so not used."""

    host: str
    why: str


# Another run


class AnotherRunKind(str, Enum):
    LINGERS = "lingers"  # Slurm requeues the job when it preempts it
    BY_SCRIPT = "by script"  # there is no scontrol here: the job's script must requeue it
    FOLLOWS = "follows"  # Slurm is asked to requeue the job
    REFUSED = "refused"
    CHAIN_STAYS = "chain stays"  # the rest of an array could not be cancelled


@value(frozen=True)
class AnotherRun:
    """The prospect of another run. It is shown, but not recorded: the log service has ended."""

    kind: AnotherRunKind
    job: str  # as Slurm's commands take it
    run: int = 0  # FOLLOWS: the number of the run that follows
    why: str = ""  # REFUSED, CHAIN_STAYS: Slurm's reason


# Notes that need no running daemon, so that `hpclaunch doctor` shows them too
MpsNote = TimeSlices | ForeignMpsUsed | ForeignMpsRefused

NodeFact = (
    LaunchNote
    | HelperEnded
    | CheckpointSearchStalled
    | CheckpointDirSuggested
    | CheckpointUnused
    | StageBegan
    | StageDeleted
    | StageFetched
    | StageRefused
    | StoringFailed
    | StageAwaited
    | StageLost
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
    | MpsNote
)
