"""The messages between an agent and its fork server (`fork_server.py`)."""

from __future__ import annotations

from typing import Any, TypeAlias, TypedDict, get_args

from .messages import Kinds, Message, by_op

# Requests of the agent


class Worker(Message):
    """A worker to start. `env` extends the environment of all."""

    rank: int
    argv: list[str]
    env: dict[str, str]
    out: str  # a file, or for the template also a terminal
    err: str
    stdin: str = ""  # a file; "": it inherits the agent's
    cpus: list[int] = []  # noqa: RUF012 frozen. CPUs to bind it to; []: the agent's


class Step(Message):
    """A step of a lesson, which a script does before its training (`site/_hpclaunch_lesson.py`)."""

    kind: str  # "import", "from", "set" or "seed"
    name: str  # a module, a variable, or a generator of random numbers
    more: str | None  # the module's file, the name that is taken from it, the variable's value


class Prepare(Message):
    """Prepare the template."""

    argv: list[str]
    env: dict[str, str]
    modules: list[str]  # to import beside torch
    own: list[str]  # variables that differ between workers
    now: bool  # start it at once; otherwise on the first connection to a store
    steps: list[Step]  # for its first successor


class Listen(Message):
    """Open the socket of the next round's store. Answered by Listening."""

    loopback: bool


class Start(Message):
    """Start the workers of a round. Answered by Started and Exit for each, and Gone after all."""

    workers: list[Worker]
    env: dict[str, str]  # of all workers
    store: str  # the file for errors of the round's store; "" when another node has it
    peers: list[str]  # the networks from which the nodes of the round connect to the store
    warm: bool  # fork them from the template; otherwise they are fresh interpreters
    learn: bool  # have the next round's template import what the script imports
    progress: bool  # watch their progress
    terminals: dict[int, list[str]]  # rank -> which of "out" and "err" are terminals
    size: tuple[int, ...]  # of terminals: rows, columns
    pipes: bool  # all other streams are pipes


class Resize(Message):
    size: tuple[int, ...]  # rows, columns


class AwaitStillness(Message):
    """Report Progress as soon as nothing has moved for one of these times."""

    seconds: list[float]


# Kinds of queries. HISTORY is answered like VITALS, but asked by the agent itself, not by its head:
# neither must replace the other.
EVIDENCE, SAMPLE, VITALS, HISTORY = "evidence", "sample", "vitals", "history"


class Query(Message):
    """Ask something about the workers (`worker_watch.py`). Answered by Answer, unless they end
    before that."""

    kind: str
    number: int


class Signal(Message):
    """Pass a signal on to the workers that have a handler for it. Unhandled names the others."""

    signum: int


class Offer(Message):
    """Offer a notice (`step_notices.py`). Answered by Offered."""

    number: int
    step: int  # 0: the next one of each worker
    signum: int


class Withdraw(Message):
    """Withdraw the notice that was offered."""


class Give(Message):
    """Give the notice that was offered. Answered by Taken, or by Unheard."""

    number: int


class Keep(Message):
    """Let the workers run until this time on the monotonic clock: the worker lease."""

    until: float


class Stop(Message):
    """Signal the workers, but not the processes that they have started."""

    signum: int


class KillIdle(Message):
    """Send SIGKILL to the workers that have done nothing since the last signal (`activity.py`)."""


class Kill(Message):
    """Send SIGKILL to the workers."""


class SignalLeft(Message):
    """Send a signal to the processes that the workers, which have ended, have left behind."""

    signum: int


class PostOnDeath(Message):
    """Post a notice should the agent die (`notice_board.py`)."""

    port: int
    notice: str
    secret: str  # hexadecimal
    release: str


class Part(Message):
    """The agent ends in order: there is nothing to post."""


Request: TypeAlias = (
    Prepare | Listen | Start | Resize | AwaitStillness | Query | Signal | Offer | Withdraw | Give
    | Keep | Stop | KillIdle | Kill | SignalLeft | PostOnDeath | Part
)  # fmt: skip
REQUESTS: Kinds[Request] = by_op(get_args(Request))

# Events for the agent


class Template(Message):
    """The template has another state (`template_client.State`)."""

    state: str
    why: str


class PassedOver(Message):
    """The template does without a module that cannot be imported, or that a fork could break."""

    module: str
    why: str
    learned: bool  # it is from a lesson; otherwise the user has named it


class Renewed(Message):
    """A successor that knows the lesson is the template now."""


class Restart(Message):
    """A worker has become a new interpreter, because a line of a file has changed the variable
    `name`, or has imported another module of that name than the template. Later rounds start cold.
    """

    kind: str  # "variable" or "module"
    name: str
    file: str
    line: int
    forked: bool  # in a process that the worker has forked, which cannot begin anew


class Listening(Message):
    port: int


class Started(Message):
    rank: int
    pid: int


class CannotStart(Message):
    """The kernel grants no further process, or no port for the store."""

    why: str


class Copier(Message):
    """The copier has started, which copies the workers' output, and outlives the fork server for a
    moment."""

    pid: int


class Exit(Message):
    """A worker has ended."""

    rank: int
    code: int  # as a shell gives it
    signal: int  # 0: none
    oom: bool = False  # killed by the kernel because memory was used up


class Left(Message):
    """All workers have ended, but these processes of theirs still run."""

    processes: list[Leftover]


class Leftover(Message):
    pid: int
    program: str
    rank: int | None  # None: not known


class Gone(Message):
    """Nothing of the round is left."""

    spent: list[int]  # milliseconds, a mean of the workers, by _hpclaunch_layout.SPENDING


class StoreExit(Message):
    """Nobody serves the store at this port any longer."""

    port: int
    code: int
    signal: int
    why: str  # "": the process itself has written it


class Progress(Message):
    """The progress of the workers (`progress_watch.py`)."""

    steps: list[int]  # of each worker, by rank
    still: float  # seconds for which nothing has moved
    gap: float  # the longest between two steps since the last message, in seconds
    save: float  # the longest between two steps in which a worker has saved, in seconds
    spent: list[int]  # as in Gone
    busy: bool  # they use the CPU
    traced: bool  # they are being debugged
    patient: bool  # they write to files, or do what takes long
    trains: bool  # one is beyond the rendezvous
    meets: bool  # one is at the rendezvous
    doing: int  # on which of SPENDING they spend their time now


class Answer(Message):
    """The answer to the Query of this kind and number.

    The body is {"ranks": [...]}, with a RankEvidence, RankSample or RankVitals for each living
    worker. In that of a sample, "ways" has {address of another node: seconds there and back}.
    """

    kind: str
    number: int
    body: dict[str, Any]


class Described(TypedDict):
    """A process as evidence of a hang shows it."""

    pid: int
    name: str
    state: str
    wchan: str
    threads: int


class RankEvidence(TypedDict):
    """The whereabouts of one worker."""

    rank: int
    pid: int
    step: int
    phase: str
    busy: bool  # used the CPU while it was asked
    stacks: str
    forked: list[tuple[int, str]]  # (pid, stacks) of processes that it has forked
    records: dict[str, Any] | None  # of torch's flight recorder, as the worker has written them
    processes: list[Described]


class Arrivals(TypedDict):
    """The times at which a worker began its last collectives; empty if it has not answered."""

    arrivals: Any  # {process group: {number: time}}, as the worker has written it
    steps: Any  # {number: time}, on GPUs, likewise
    blind: bool  # torch records none


class Pace(TypedDict, total=False):
    """A worker's use of the time since its last sample, as shares of it unless noted otherwise.
    Empty in its first sample."""

    pace: float  # the seconds that a step took; 0: it made none
    cpu: float
    queued: float
    throttled: float
    blocked: float  # the share of looks in which it waited for storage
    clock: float  # GHz of its CPU; 0: not known


class RankSample(Arrivals, Pace):
    """The pace of one worker."""

    rank: int


class RankVitals(TypedDict):
    """The activity of one worker and its use of resources, as in core/protocol/model.py."""

    rank: int
    phase: str
    steps: int
    step: int
    cpu: float
    memory: int


class Unhandled(Message):
    """Some workers have no handler for a signal, which would have killed them."""

    signum: int
    ranks: list[int]


class Offered(Message):
    """The answer to Offer."""

    number: int
    accepted: bool
    busy: bool  # an earlier notice is on its way
    steps: list[int]  # the fewest and the most that workers have begun; []: none makes any


class Unheard(Message):
    """No worker can take the notice that was given."""

    number: int


class Taken(Message):
    """All workers have reached the step of the notice."""

    number: int
    last: bool  # and have ended with that step


class LeaseOver(Message):
    """The worker lease is over: the workers are held, or killed if they are to stop."""


Event: TypeAlias = (
    Template | PassedOver | Renewed | Restart | Listening | Started | CannotStart | Copier | Exit
    | Left | Gone | StoreExit | Progress | Answer | Unhandled | Offered | Unheard | Taken
    | LeaseOver
)  # fmt: skip
EVENTS: Kinds[Event] = by_op(get_args(Event))
