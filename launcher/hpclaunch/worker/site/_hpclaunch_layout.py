"""The layout of the memory and files that workers share with their fork server.

Both ends import this file: `_hpclaunch_progress.py` and `_hpclaunch_responder.py` in a worker,
`shared_pages.py` in the fork server, and `stack_reader.py`, which `hpclaunch stacks` runs.

All workers of a round share one memory file, with a slot for each. Two more files belong to each
worker: it writes stacks to one, and records, which are lines of JSON, to the other. The fork server
writes requests, of one byte each, to a pipe.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported here
    from typing import Any

NAMES = ("hpclaunch progress", "hpclaunch stacks", "hpclaunch records")  # of the memory files
KINDS = ("/memfd:hpclaunch ", "pipe:[")  # how the links to them and to the pipe in /proc begin

# The fields of a slot, 8 bytes each: whole numbers, or times and durations in seconds. Times are on
# the monotonic clock.
SLOT = 216  # bytes
# Progress, written by the worker.
STEP = 0  # the number of steps: of the leading optimizer, or as the script counts them
TIME = 1  # the time of the last step
PHASE = 2
WRITER = 3  # the pid of the process that writes the fields above; 0 without one
ANSWERER = 4  # the pid of the process whose stacks count
NUMBER = 5  # the script's own number of the step; 0 without one
# Written by the fork server, for `stack_reader.py`.
WORKER = 6  # the pid of the worker, once it is started
RANK = 7
STACKS = 8  # the fork server's descriptor
ASKS = 9  # whether the script asks if it has notice, so that it needs no signal
# A notice. The worker writes ENTERED and TAKEN, the fork server the others: NOTICE and SIGNUM
# before STEP_OF_NOTICE, which puts them into effect.
SIGNUM = 10  # the signal to raise; 0: the first of NOTICE_SIGNALS that the script handles
ENTERED = 11  # the step that the worker has begun
STEP_OF_NOTICE = 12  # the worker takes the notice before it begins this step; NEVER without one
NOTICE = 13  # its number
GIVEN = 14  # the number of the notice that all agents have accepted
TAKEN = 15  # the number of the last notice that this worker has taken
# How the worker has spent its time. The fork server writes SINCE when the round begins.
SINCE = 16  # the time at which the phase began
SPENT = 17  # five durations, in the order of SPENDING: in earlier phases
# Questions.
ASKED_AT = 22  # the fork server's descriptor to which requests are written
RESPONDER = 23  # the id of the thread of ANSWERER that answers them
MAKES = 24  # whether torch has an optimizer whose steps are seen, or the script counts its steps
ALLOCATED = 25  # how often memory of GPUs was allocated, by the last answer; 0: not known
HANDLED = 26  # a bit for each signal below SIGNAL that the script handled or ignored at its end

NEVER = 1 << 62
IN_A_ROW = 16  # steps of other optimizers without one of the leading one: then another leads
NOTICE_SIGNALS = (10, 12, 15)  # SIGUSR1, SIGUSR2, SIGTERM

PHASES = ("start", "rendezvous", "first step", "step", "evaluation", "save", "end")
START, RENDEZVOUS, FIRST_STEP, STEPS, EVALUATION, SAVE, END = range(len(PHASES))
OTHER = len(PHASES)  # any other name that the script has given
LONG = {EVALUATION, SAVE, OTHER}  # may take much longer than a step

# What workers spend their time on, and as which of these each phase counts. The first phase counts
# as imports before the ranks have met, and as loading afterwards. "end" does not count.
SPENDING = ("imports", "rendezvous", "loading", "training", "saving")
IMPORTS, MEETING, LOADING, TRAINING, SAVING = range(len(SPENDING))
UNCOUNTED = len(SPENDING)
COUNTED = (IMPORTS, MEETING, LOADING, TRAINING, TRAINING, SAVING, UNCOUNTED, TRAINING)

# Requests: for stacks; for stacks and the flight recorder; for the times at which collectives
# began; for ALLOCATED.
STACKS_ONLY, ENTRIES, ARRIVALS, ALLOCATIONS = b"s", b"e", b"a", b"g"
BEGUN, WRITTEN = b"\2", b"\3"  # before and after stacks that the responder has written

# The signal on which a process writes its stacks. C libraries and MPI do not use it, and 64 and
# those just below it are for debuggers.
SIGNAL = 58
# The descriptors of a worker for stacks and for requests: the first of each that the limit allows.
# They are high, since scripts may rely on the lowest numbers.
HIGH, HIGH_TOO = (900, 200, 60), (901, 201, 61)

MOST = 1 << 20  # bytes that are read of a file
LARGEST = 1 << 60  # number in a slot; sums of some of them still fit into 64 bits
LATEST = 1e9  # seconds, on the monotonic clock


class Slot:
    """The fields of one worker. A program of the user's may write anything there, so the fork
    server reads them with `number` and `seconds`."""

    def __init__(self, memory: memoryview) -> None:
        self.numbers, self.times = memory.cast("q"), memory.cast("d")  # the same memory

    def number(self, field: int) -> int:
        """Return a whole number; 0 for one that no worker writes."""
        value = self.numbers[field]
        return value if 0 <= value < LARGEST else 0

    def seconds(self, field: int) -> float:
        """Return a time or a duration; 0.0 for one that no worker writes."""
        value = self.times[field]
        return value if 0 <= value < LATEST else 0.0

    @property
    def phase(self) -> int:
        return min(self.number(PHASE), OTHER)


def counted_as(phase: int, met: float) -> int:
    """Return which of SPENDING a phase is; `met` is for how many seconds the ranks have met."""
    return LOADING if phase == START and met else COUNTED[phase]


class Place:
    """The place where a worker finds its slot and its files: descriptors of the fork server, which
    outlives the worker, and the number of the slot."""

    VARIABLE = "HPCLAUNCH_PROGRESS"

    def __init__(
        self, server: int, memory: int, slot: int, stacks: int, requests: int, records: int
    ) -> None:
        self.server, self.memory, self.slot = server, memory, slot
        self.stacks, self.requests, self.records = stacks, requests, records

    @classmethod
    def of_environment(cls) -> "Place | None":
        """Return the place of this worker; None without one."""
        try:
            return cls(*map(int, os.environ[cls.VARIABLE].split(":")))
        except (KeyError, TypeError, ValueError):
            return None

    def variable(self) -> "dict[str, str]":
        """Return the variable by which the worker finds this place."""
        numbers = (self.server, self.memory, self.slot, self.stacks, self.requests, self.records)
        return {self.VARIABLE: ":".join(map(str, numbers))}


class Opened:
    """A descriptor of a fork server that is opened for a moment. Raises OSError if it is none of
    ours: in another namespace, another process has the pid."""

    def __init__(self, server: int, fd: int, flags: int = os.O_RDWR) -> None:
        path = f"/proc/{server}/fd/{fd}"
        if not os.readlink(path).startswith(KINDS):
            raise OSError(path)
        self.fd = os.open(path, flags)

    def __enter__(self) -> int:
        return self.fd

    def __exit__(self, *_: "Any") -> None:
        os.close(self.fd)
