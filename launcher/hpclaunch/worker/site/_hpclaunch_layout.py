"""The layout of the memory and files that workers share with their fork server.

Both ends import this file: `_hpclaunch_progress.py` and `_hpclaunch_responder.py` in a worker,
`shared_pages.py` in the fork server, and `stack_reader.py`, which `hpclaunch stacks` runs.

All workers of a round share one memory file, with a slot for each. Each worker has two files: it
writes stacks to one, and records, which are lines of JSON, to the other. The fork server writes
requests, of one byte each, to a pipe of each worker.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported here
    from typing import Any

NAMES = ("hpclaunch progress", "hpclaunch stacks", "hpclaunch records")  # of the memory files
KINDS = ("/memfd:hpclaunch ", "pipe:[")  # prefixes of their links in /proc, and of the pipe's

# The fields of a slot, 8 bytes each: whole numbers, or times and durations in seconds. Times are on
# the monotonic clock.
SLOT = 216  # bytes
# Progress, written by the worker.
STEP = 0  # the number of steps of the leading optimizer, or as the script counts them
TIME = 1  # the time of the last step
PHASE = 2
WRITER = 3  # the pid of the process that writes the fields above; 0 if there is none
ANSWERER = 4  # the pid of the process whose stacks represent the worker
NUMBER = 5  # the script's own number of the step; 0 if it has none
# Written by the fork server, for `stack_reader.py`.
WORKER = 6  # the pid of the worker, once it is started
RANK = 7
STACKS = 8  # the fork server's descriptor of the file for stacks
ASKS = 9  # whether the script asks for notices itself, so that it needs no signal
# A notice. The worker writes ENTERED and TAKEN, the fork server the others. It writes NOTICE and
# SIGNUM first; STEP_OF_NOTICE puts them into effect.
SIGNUM = 10  # the signal to raise; 0: the first of NOTICE_SIGNALS that the script handles
ENTERED = 11  # the step that the worker has begun
STEP_OF_NOTICE = 12  # the worker takes the notice before this step; NEVER if there is none
NOTICE = 13  # the number of the notice
GIVEN = 14  # the number of the notice that all agents have accepted
TAKEN = 15  # the number of the last notice that this worker has taken
# How the worker has spent its time. The fork server writes SINCE when the round begins.
SINCE = 16  # the time at which the phase began
SPENT = 17  # five durations, in the order of SPENDING, without the current phase
# Requests.
ASKED_AT = 22  # the fork server's descriptor to which requests are written
RESPONDER = 23  # the id of the thread of ANSWERER that answers them
MAKES = 24  # whether optimizer steps can be seen, or the script counts its steps
ALLOCATED = 25  # how often GPU memory was allocated, at the last answer; 0: not known
HANDLED = 26  # a bit per signal below SIGNAL: the script handled or ignored it at its end

NEVER = 1 << 62
IN_A_ROW = 16  # after so many steps without one of the leading optimizer, another leads
NOTICE_SIGNALS = (10, 12, 15)  # SIGUSR1, SIGUSR2, SIGTERM

PHASES = ("start", "rendezvous", "first step", "step", "evaluation", "save", "end")
START, RENDEZVOUS, FIRST_STEP, STEPS, EVALUATION, SAVE, END = range(len(PHASES))
OTHER = len(PHASES)  # any other name that the script gives to a phase
LONG = {EVALUATION, SAVE, OTHER}  # may take much longer than a step

# The kinds of time that workers spend, and the kind of each phase. The first phase counts as
# imports before the ranks have met, and as loading afterwards. "end" does not count.
SPENDING = ("imports", "rendezvous", "loading", "training", "saving")
IMPORTS, MEETING, LOADING, TRAINING, SAVING = range(len(SPENDING))
UNCOUNTED = len(SPENDING)
COUNTED = (IMPORTS, MEETING, LOADING, TRAINING, TRAINING, SAVING, UNCOUNTED, TRAINING)

# Requests: stacks; stacks and the flight recorder; the times at which collectives began; ALLOCATED.
STACKS_ONLY, ENTRIES, ARRIVALS, ALLOCATIONS = b"s", b"e", b"a", b"g"
BEGUN, WRITTEN = b"\2", b"\3"  # before and after stacks that the responder has written

# The signal on which a process writes its stacks. C libraries and MPI do not use it; debuggers use
# 64 and the signals just below.
SIGNAL = 58
# The numbers of a worker's descriptors for stacks and for requests: the first of each that is free
# and below the limit. They are high, since scripts may rely on the lowest numbers.
HIGH, HIGH_TOO = (900, 200, 60), (901, 201, 61)

MOST = 1 << 20  # bytes to read from a file
LARGEST = 1 << 60  # a number in a slot; sums of a few still fit into 64 bits
LATEST = 1e9  # seconds, on the monotonic clock


class Slot:
    """The fields of one worker. The worker may write anything there, so the fork server reads them
    with `number` and `seconds`."""

    def __init__(self, memory: memoryview) -> None:
        self.numbers, self.times = memory.cast("q"), memory.cast("d")  # the same memory

    def number(self, field: int) -> int:
        """Return a whole number; 0 if it is not a valid one."""
        value = self.numbers[field]
        return value if 0 <= value < LARGEST else 0

    def seconds(self, field: int) -> float:
        """Return a time or a duration; 0.0 if it is not a valid one."""
        value = self.times[field]
        return value if 0 <= value < LATEST else 0.0

    @property
    def phase(self) -> int:
        return min(self.number(PHASE), OTHER)


def counted_as(phase: int, met: float) -> int:
    """Return the index of a phase in SPENDING. `met` is the time spent at the rendezvous."""
    return LOADING if phase == START and met else COUNTED[phase]


class Place:
    """The place of a worker's slot and files: descriptors of the fork server, which outlives the
    worker, and the number of the slot."""

    VARIABLE = "HPCLAUNCH_PROGRESS"

    def __init__(
        self, server: int, memory: int, slot: int, stacks: int, requests: int, records: int
    ) -> None:
        self.server, self.memory, self.slot = server, memory, slot
        self.stacks, self.requests, self.records = stacks, requests, records

    @classmethod
    def of_environment(cls) -> "Place | None":
        """Return the place of this worker; None if there is none."""
        try:
            return cls(*map(int, os.environ[cls.VARIABLE].split(":")))
        except (KeyError, TypeError, ValueError):
            return None

    def variable(self) -> "dict[str, str]":
        """Return {variable: value} for the worker's environment."""
        numbers = (self.server, self.memory, self.slot, self.stacks, self.requests, self.records)
        return {self.VARIABLE: ":".join(map(str, numbers))}


class Opened:
    """A context that opens a descriptor of the fork server. Raises OSError if it is another file:
    in another namespace, another process has the pid."""

    def __init__(self, server: int, fd: int, flags: int = os.O_RDWR) -> None:
        path = f"/proc/{server}/fd/{fd}"
        if not os.readlink(path).startswith(KINDS):
            raise OSError(path)
        self.fd = os.open(path, flags)

    def __enter__(self) -> int:
        return self.fd

    def __exit__(self, *_: "Any") -> None:
        os.close(self.fd)
