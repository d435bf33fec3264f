"""In a worker: how far its script has come, and where it is, for the fork server.

HPCLAUNCH_PROGRESS names descriptors of the fork server, which outlives the worker, and a slot:
"PID:PAGE:SLOT:STACKS:REQUESTS:RECORDS". Nothing here needs a thread or a system call per step.

PAGE is memory that all workers of a round share, each with a slot of its own. `ProgressSlot` writes
there, from hooks in torch: each optimizer step, and the phase. The fork server writes there before
which step notice is given (`step_notices.py`).

A thread of the worker, the hearer, waits for bytes from REQUESTS, and answers each: into STACKS
faulthandler writes the stacks of all threads, and into RECORDS goes torch's flight recorder, as a
line of JSON, with the name of the function that the main thread waits in. The hearer has Python's
lock while it does so, and thus all others stand still; a rank that is in a collective has let go of
it.

Where nobody answers, SIGNAL has faulthandler write the same in C, without the lock. If another
thread runs Python at that moment, the worker may die of it: who sends SIGNAL sees to that
(`stack_questions.py`).
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported here
    from typing import Any

VARIABLE = "HPCLAUNCH_PROGRESS"
# Not one of those that C libraries and MPI use. Signal 64 and the ones below it are debuggers'.
SIGNAL = 58

SLOT = 216  # bytes
# The fields of a slot, 8 bytes each.
STEP = 0  # steps so far: of the optimizer that leads (see `stepped`), or as the script says so
TIME = 1  # of the last one, on the monotonic clock; a double
PHASE = 2
WRITER = 3  # the pid of the process that writes the fields above; 0 if none does
ANSWERER = 4  # the pid of the process whose stacks count
NUMBER = 5  # of the step, as the script counts; 0 if it does not say
# Written by the fork server, for `stack_reader.py`.
WORKER = 6  # the pid of the worker, once it is there
RANK = 7
STACKS = 8  # the fork server's descriptor
ASKS = 9  # whether the script asks if it has notice, so that it needs no signal
# Of a notice, the last ones of the slot. The worker writes ENTERED and TAKEN, the fork server the
# others: NOTICE and SIGNUM before STEP_OF_NOTICE, which makes them count.
SIGNUM = 10  # the signal to raise; 0: the first of NOTICE_SIGNALS that the script handles
ENTERED = 11  # the step that the worker has begun
STEP_OF_NOTICE = 12  # the worker takes the notice before it begins this step; NEVER without one
NOTICE = 13  # its number
GIVEN = 14  # the number of the notice that all agents have accepted
TAKEN = 15  # the number of the last notice that this worker has taken
# How the worker has spent its time, in seconds: the fork server writes SINCE when the round begins.
SINCE = 16  # when its phase began, on the monotonic clock; a double
SPENT = 17  # five doubles, in the order of SPENDING: in earlier phases
# Of questions.
ASKED_AT = 22  # the fork server's descriptor that requests are written to
HEARER = 23  # the thread of ANSWERER that answers them
MAKES = 24  # whether there is an optimizer of torch that is seen, or the script counts its steps
ALLOCATED = 25  # how often memory of GPUs was allocated, as the hearer was asked last; 0: unknown
HANDLED = 26  # a bit for each signal below SIGNAL that the script handled or ignored at its end
NEVER = 1 << 62
NOTICE_SIGNALS = (10, 12, 15)  # SIGUSR1, SIGUSR2, SIGTERM
IN_A_ROW = 16  # steps of others without one of the optimizer that has made the most
FIRST_PAUSE, LONGEST_PAUSE = 0.0002, 0.01  # seconds between two looks whether a notice is given

PHASES = ("start", "rendezvous", "first step", "step", "evaluation", "save", "end")
START, RENDEZVOUS, FIRST_STEP, STEPS = range(4)
SAVE, END = PHASES.index("save"), PHASES.index("end")
OTHER = len(PHASES)  # whatever other name the script has given
LONG = {PHASES.index("evaluation"), PHASES.index("save"), OTHER}  # may take much longer than a step

# What a worker spends its time on, and as which of these each phase counts. The first phase counts
# as imports before the ranks have met, and as loading afterwards; "end" does not count.
SPENDING = ("imports", "rendezvous", "loading", "training", "saving")
IMPORTS, MEETING, LOADING, TRAINING, SAVING = range(len(SPENDING))
UNCOUNTED = len(SPENDING)
COUNTED = (IMPORTS, MEETING, LOADING, TRAINING, TRAINING, SAVING, UNCOUNTED, TRAINING)

# What a byte in REQUESTS asks for: the stacks; these and the flight recorder; only when its
# collectives began; or ALLOCATED.
STACKS_ONLY, ENTRIES, ARRIVALS, ALLOCATIONS = b"s", b"e", b"a", b"g"
HELD = 0.02  # seconds for which the hearer keeps Python's lock; who waits for it asks after 5 ms
BEGUN, WRITTEN = b"\2", b"\3"  # before and after stacks that the hearer has written
PIPELINES = ("torch.distributed.pipelining.", "deepspeed.runtime.pipe.")
MOST_ENTRIES, MOST_ARRIVALS = 500, 1000  # of a flight recorder, or steps
NEEDED = {"collective_seq_id", "is_p2p", "process_group", "profiling_name", "time_created_ns"}
UNCOUNTED_CODE = ("EXTENDED_ARG", "KW_NAMES")  # which change nothing on the stack
NAMES = ("hpclaunch progress", "hpclaunch stacks", "hpclaunch records")  # of the memory files
KINDS = ("/memfd:hpclaunch ", "pipe:[")
# Our descriptors are not among the first, which scripts may count on: the first of these that the
# limit allows, for stacks and for requests.
HIGH, HIGH_TOO = (900, 200, 60), (901, 201, 61)
MOST_THREADS = 100  # of which faulthandler writes the stacks, the newest first
MOST_FRAMES = 100  # of a stack, as faulthandler


class ProgressSlot:
    """Of the process that is the worker, or of the first one below it that trains."""

    def __init__(self) -> None:
        self._unmap()
        self._counts: Any = {}  # steps by optimizer
        self._most = 0  # of these
        self._others = 0  # steps in a row of optimizers that have made fewer
        self._engine: Any = None  # that is making a step, of which those of optimizers are parts
        self._begun = False  # it is a worker, or below one, and no template
        self._tried = 0  # the process that has tried to write to its slot
        self._raises = False  # the signal of a notice
        self._register: Any = None  # torch's function, for a hook of all optimizers
        self._register_before: Any = None  # the same, for one that is called before each step
        self._listeners: Any = []  # to be called after each step, once there is an optimizer
        self._listens = False
        self._answering = 0  # the process that has begun to answer requests
        self.entered: list[tuple[int, int]] = []  # the last steps: (number, when begun, in ns)

    def names(self) -> "tuple[int, ...] | None":
        """(the fork server's pid, PAGE, SLOT, STACKS, REQUESTS, RECORDS); None without them."""
        try:
            names = tuple(map(int, os.environ[VARIABLE].split(":")))
        except (KeyError, ValueError):
            return None
        return names if len(names) == 6 else None

    # Where it is

    def begin(self) -> None:
        """At the start of every Python below a worker: SIGNAL prints its stacks from now on."""
        names = self.names()
        if names is None:
            return
        self._begun = True
        server, page, slot, stacks, _, _ = names
        try:
            with Opened(server, page) as fd:
                if not claimed(fd, slot, ANSWERER):
                    return
            _print_stacks(server, stacks)
        except (ImportError, OSError):
            pass  # no faulthandler, or the fork server is gone, or in another namespace

    def answer(self) -> None:
        """Once there is a process group or an optimizer, and so threads of torch's: begin to answer
        requests."""
        names = self.names()
        if names is None or not self.writes or self._answering == os.getpid():
            return
        import _thread

        self._answering = os.getpid()
        try:
            _thread.start_new_thread(_answer, (*names, _faulthandler(), self._steps))
        except (ImportError, OSError, RuntimeError):
            pass  # no further thread for this user

    # How far it is

    @property
    def writes(self) -> bool:
        """Whether this process writes to its slot. A process that it has forked does not."""
        if self._begun and self._tried != os.getpid():
            self._tried = os.getpid()
            self._unmap()
            names = self.names()
            if names is not None:
                self._attach(*names[:4])
        return self._steps is not None

    def _unmap(self) -> None:
        # Memory, once this process writes to its slot.
        self._steps: Any = None
        self._times: Any = None

    def _attach(self, server: int, page: int, slot: int, stacks: int) -> None:
        try:
            with Opened(server, page) as fd:
                if not claimed(fd, slot, WRITER):
                    return
                os.pwrite(fd, bytes(8 * WRITER), slot * SLOT)  # what another program has left
                for field in (NUMBER, ASKS, ENTERED, HEARER, MAKES, ALLOCATED, HANDLED):
                    os.pwrite(fd, bytes(8), slot * SLOT + 8 * field)
                memory = _mapped(fd)[slot * SLOT : (slot + 1) * SLOT]
            self._steps, self._times = memory.cast("q"), memory.cast("d")
            import atexit

            atexit.register(self._end)
            os.register_at_fork(after_in_child=self._unmap)
            if self._steps[ANSWERER] != os.getpid():  # a launcher of the script's, which only waits
                self._steps[ANSWERER] = os.getpid()
                _print_stacks(server, stacks)
        except (ImportError, OSError):
            pass  # as above

    def _end(self) -> None:
        """Note that the script has ended, and which signals it handles: Python resets them next."""
        if self.writes:
            import _signal  # type: ignore[import-not-found]  # the module in C

            changed = [s for s in range(1, SIGNAL) if _signal.getsignal(s) != _signal.SIG_DFL]
            self._steps[HANDLED] = sum(1 << s for s in changed)
            self.phase(END)

    def phase(self, number: int) -> None:
        if self.writes and self._steps[PHASE] != number:
            self._turn_to(number)

    def _turn_to(self, number: int) -> None:
        """Another phase begins: what was spent in the last one is known."""
        steps, times = self._steps, self._times
        now = time.monotonic()
        counted = counted_as(steps[PHASE], times[SPENT + MEETING])
        if counted != UNCOUNTED and times[SINCE]:
            times[SPENT + counted] += now - times[SINCE]
        times[SINCE] = now
        steps[PHASE] = number

    def saves(self, function: "Any") -> "Any":
        """Wrap what saves: it is the phase "save" while it runs in the main thread."""
        import functools
        import threading

        @functools.wraps(function)
        def saving(*args: "Any", **kwargs: "Any") -> "Any":
            main = threading.current_thread() is threading.main_thread()
            if not (main and self.writes and self._steps[PHASE] in (FIRST_STEP, STEPS)):
                return function(*args, **kwargs)
            before = self._steps[PHASE]
            self._turn_to(SAVE)
            try:
                return function(*args, **kwargs)
            finally:
                if self.writes and self._steps[PHASE] == SAVE:
                    self._turn_to(before)

        return saving

    def enter(self, name: str) -> None:
        """The script names the phase."""
        self.phase(PHASES.index(name) if name in PHASES else OTHER)

    def step(self, number: int) -> None:
        """The script counts its own steps. Where it begins says nothing of how many it has done."""
        if self.writes:
            self._steps[MAKES] = 1
            self.entering(None)
            self._steps[NUMBER] = int(number)
            self.stepped(None)

    def stepped(self, optimizer: object, monotonic: "Any" = time.monotonic) -> None:
        """After each step of each optimizer, so it is short.

        Those of the one that has made the most count: others make theirs in between. If they go on
        without it, as where one model is trained after another, the next to step is level with it.
        So what counts depends on the order of the steps alone, which is the same on all ranks.
        """
        if self._steps is None:
            return
        if self._engine is not None:
            self._times[TIME] = monotonic()
            return
        which = id(optimizer)
        count = self._counts.get(which, 0) + 1
        if count > self._most:
            self._steps[STEP] = self._most = count
            self._others = 0
        elif count < self._most:
            self._others += 1
            if self._others >= IN_A_ROW:
                count, self._others = self._most, 0
        self._counts[which] = count
        if self._steps[PHASE] != STEPS:
            self._turn_to(STEPS)
        self._times[TIME] = monotonic()

    def entering(self, optimizer: object) -> None:
        """Before each step of each optimizer, so it is short."""
        steps = self._steps
        if steps is None or self._engine is not None:
            return
        number = self._counts.get(id(optimizer), 0) + 1
        if number > self._most:
            steps[ENTERED] = number
            self.entered.append((number, time.monotonic_ns()))
            del self.entered[:-MOST_ARRIVALS]
            if number >= steps[STEP_OF_NOTICE]:
                self._take_notice(number)

    def _take_notice(self, number: int) -> None:
        """At the step of a notice: wait until it is known whether it is given there. All ranks take
        it before the same step, or none does, so no time-out ends this: the launcher says so, or
        ends the worker.
        """
        steps, pause = self._steps, FIRST_PAUSE
        while number >= steps[STEP_OF_NOTICE] and steps[TAKEN] != steps[NOTICE]:
            # The step once more: another notice may have been given since it was read.
            if steps[GIVEN] == steps[NOTICE] and number >= steps[STEP_OF_NOTICE]:
                steps[TAKEN] = steps[NOTICE]
                self._raises = True
                try:
                    _raise_signal(steps[SIGNUM])
                finally:
                    self._raises = False
                return
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def due(self) -> bool:
        """Whether notice was given, and this rank is at its step, or makes none."""
        if not self.writes:
            return False
        steps = self._steps
        steps[ASKS] = 1
        if steps[TAKEN]:
            return True
        given = steps[GIVEN]
        if given and not (steps[MAKES] or steps[ENTERED]):
            steps[TAKEN] = given  # whatever is offered next
            return True
        at_its_step = steps[ENTERED] >= steps[STEP_OF_NOTICE]
        return bool(given > 0 and given == steps[NOTICE] and at_its_step)

    def unseen(self) -> None:
        """An optimizer is part of compiled code, so there is nothing to learn from its steps."""
        if self.writes:
            self._steps[MAKES] = 0
            if self._steps[PHASE] == FIRST_STEP:
                self._turn_to(START)

    # What tells of it

    def watch_groups(self, c10d: "Any") -> None:
        """`c10d` is the module torch.distributed.distributed_c10d."""
        self._wrap(c10d, "init_process_group", self._meets, self._has_met)

    def watch_optimizers(self, optimizer: "Any") -> None:
        """`optimizer` is the module torch.optim.optimizer."""
        register = getattr(optimizer, "register_optimizer_step_post_hook", None)
        if register is not None:
            self._register = register
            self._register_before = optimizer.register_optimizer_step_pre_hook
            self._wrap(optimizer.Optimizer, "_patch_step_function", self._made)

    def listen(self, function: "Any") -> None:
        """Have it called with the optimizer after each step, of optimizers still to be made."""
        self._listeners.append(function)

    def watch_scalers(self, scaler: "Any") -> None:
        """`scaler` is the module torch.amp.grad_scaler. A step that it skips is none of the
        optimizer, but the training goes on."""
        self._wrap(getattr(scaler, "GradScaler", None), "update", self._moved)

    def watch_engines(self, engine: "Any") -> None:
        """`engine` is the module deepspeed.runtime.engine. With ZeRO, one step of an engine is
        several of its optimizer, one for each group of weights; in between, the weights are those
        of no step."""
        self._wrap(
            getattr(engine, "DeepSpeedEngine", None), "_take_model_step", self._begins, self._ends
        )

    def watch_requests(self, trainer: "Any") -> None:
        """`trainer` is the module transformers.trainer_jit_checkpoint. Its handler of SIGTERM has a
        timer request a checkpoint 3 s later. Some ranks may be a step ahead then. They take a
        notice at one step, so the checkpoint is requested there."""
        self._wrap(getattr(trainer, "CheckpointManager", None), "_sigterm_handler", self._requested)

    def watch_graphs(self, graphs: "Any") -> None:
        """`graphs` is the module torch.cuda.graphs. A step that is part of a graph is not seen."""
        self._wrap(getattr(graphs, "CUDAGraph", None), "replay", self._moved)

    def _meets(self, *_: object) -> None:
        if self.writes and self._steps[PHASE] == START:
            self._turn_to(RENDEZVOUS)

    def _has_met(self) -> None:
        """Or has failed to."""
        if self.writes and self._steps[PHASE] == RENDEZVOUS:
            self._turn_to(START)  # it may well be a server, which waits for requests
        self.answer()

    def _made(self, optimizer: object) -> None:
        """It was, or its state is loaded. It goes on from where the others are."""
        if self.writes:
            if "state" not in vars(optimizer):  # not loaded anew; another had its id, on some ranks
                self._counts[id(optimizer)] = self._most
            if not self._listens:
                self._listens = True
                self.listen(self.stepped)
                self._register_before(_hook_before(self.entering))
            self._steps[MAKES] = 1
            if self._steps[PHASE] < FIRST_STEP:
                self._turn_to(FIRST_STEP)
            self.answer()
        while self._listeners:
            self._register(_hook(self._listeners.pop()))

    def _begins(self, engine: object) -> None:
        self.entering(engine)
        self._engine = engine

    def _ends(self) -> None:
        engine, self._engine = self._engine, None
        self.stepped(engine)

    def _requested(self, manager: "Any") -> None:
        if self._raises:
            manager.is_checkpoint_requested = True

    def _moved(self, *_: object) -> None:
        if self._steps is not None:
            self._times[TIME] = time.monotonic()

    def _wrap(self, owner: "Any", name: str, before: "Any", after: "Any" = None) -> None:
        import functools

        function = getattr(owner, name, None)
        if function is None:
            return

        @functools.wraps(function)
        def ours(*args: "Any", **kwargs: "Any") -> "Any":
            before(*args[:1])
            try:
                return function(*args, **kwargs)
            finally:
                if after is not None:
                    after()

        setattr(owner, name, ours)


def _hook_before(entering: "Any") -> "Any":
    """Of a compiled step nothing is left of it, as torch.compile knows the answer."""
    from torch.compiler import is_dynamo_compiling

    def before_step(optimizer: object, _args: object, _kwargs: object) -> None:
        if not is_dynamo_compiling():
            entering(optimizer)

    return before_step


def _hook(stepped: "Any") -> "Any":
    """For `stepped`. torch.compile traces it along with a compiled optimizer, and stumbles over
    most that could be done here: what is one graph without it still must be one.
    """
    # torch imports it for the first optimizer that is made, a moment later.
    from torch._dynamo.comptime import comptime

    def after_step(optimizer: object, _args: object, _kwargs: object) -> None:
        comptime(_while_compiling, lambda: stepped(optimizer))

    return after_step


def _while_compiling(_context: object) -> None:
    progress.unseen()


def _raise_signal(signum: int) -> None:
    """In this process, if the script handles it; the handler has run when this returns, at least
    in the main thread."""
    import _signal  # the module in C

    if not signum:
        handled = (s for s in NOTICE_SIGNALS if callable(_signal.getsignal(s)))
        signum = next(handled, 0)
    if signum and _signal.getsignal(signum) != _signal.SIG_DFL:
        _signal.raise_signal(signum)


def counted_as(phase: int, met: float) -> int:
    """As what time in this phase is counted; `met`: the seconds that the ranks took to meet."""
    return LOADING if phase == START and met else COUNTED[phase]


class Opened:
    """A descriptor of the fork server, opened for a moment. OSError if it is none of ours: on
    another node, or in another namespace, the pid is another process's."""

    def __init__(self, server: int, fd: int, flags: int = os.O_RDWR) -> None:
        path = f"/proc/{server}/fd/{fd}"
        if not os.readlink(path).startswith(KINDS):
            raise OSError
        self.fd = os.open(path, flags)

    def __enter__(self) -> int:
        return self.fd

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def claimed(fd: int, slot: int, field: int) -> bool:
    """Whether this process is the one that the field of the slot names, from now on if nobody that
    is alive is named. So of several Pythons below one worker, the first one is."""
    at = slot * SLOT + 8 * field
    known = int.from_bytes(os.pread(fd, 8, at), sys.byteorder)
    if known and known != os.getpid() and os.path.exists(f"/proc/{known}"):
        return False
    os.pwrite(fd, os.getpid().to_bytes(8, sys.byteorder), at)
    return True


def _mapped(fd: int) -> memoryview:
    """The whole file as memory. Python's mmap would keep a descriptor open; torch has loaded
    ctypes in any case."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    size = os.fstat(fd).st_size
    address = libc.mmap(None, size, 3, 1, fd, 0)  # PROT_READ | PROT_WRITE, MAP_SHARED
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _print_stacks(server: int, stacks: int) -> None:
    import _signal  # the module in C

    if _signal.getsignal(SIGNAL) != _signal.SIG_DFL:
        return  # somebody's own
    faulthandler = _faulthandler()
    with Opened(server, stacks, os.O_WRONLY | os.O_APPEND) as fd:
        high = dup_high(fd, HIGH)
    faulthandler.register(SIGNAL, file=high, all_threads=True, chain=False)


def _faulthandler() -> "Any":
    """The module. Leaves none behind that the script would not have."""
    known = "faulthandler" in sys.modules
    import faulthandler

    if not known:
        del sys.modules["faulthandler"]
    return faulthandler


def dup_high(fd: int, numbers: "tuple[int, ...]") -> int:
    for number in numbers:
        try:
            os.fstat(number)
        except OSError:  # it is free
            try:
                return os.dup2(fd, number, inheritable=False)
            except OSError:
                pass  # above the limit
    raise OSError


def _answer(
    server: int,
    _page: int,
    _slot: int,
    stacks: int,
    requests: int,
    records: int,
    faulthandler: "Any",
    fields: memoryview,
) -> None:
    import _signal
    import _thread

    # This thread takes no signal that the script waits for in another one. It takes SIGNAL, and not
    # the next one, by which `is_answering` knows that it does.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals() - {SIGNAL, SIGNAL + 1})
    try:
        with Opened(server, requests, os.O_RDONLY) as fd:
            high = dup_high(fd, HIGH_TOO)
        since, fields[HEARER] = 0, _thread.get_native_id()
        while asked := os.read(high, 1):
            if asked == ARRIVALS:
                text, since = arrived(since), time.monotonic_ns()
                _append(server, records, text)
                continue
            if asked == ALLOCATIONS:
                fields[ALLOCATED] = allocations()
                continue
            with Opened(server, stacks, os.O_WRONLY | os.O_APPEND) as to:
                os.write(to, BEGUN)
                faulthandler.dump_traceback(to, all_threads=True)
                os.write(to, _left_out() + WRITTEN)
            if asked == ENTRIES:
                _append(server, records, recorded())
    except (OSError, RuntimeError):
        pass  # the fork server is gone, or there are too many open files


def _left_out() -> bytes:
    """The stack of the main thread, as faulthandler writes it, if it is too old to be among its."""
    import threading

    main: Any = threading.main_thread().ident
    frame: Any = sys._current_frames().get(main)
    if frame is None or len(sys._current_frames()) <= MOST_THREADS:
        return b""
    lines = [f"\nThread {main:#018x} (most recent call first):"]
    while frame is not None and len(lines) <= MOST_FRAMES:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return "\n".join([*lines, ""]).encode("ascii", "backslashreplace")


def _append(server: int, file: int, text: bytes) -> None:
    with Opened(server, file, os.O_WRONLY | os.O_APPEND) as to:
        while text:
            text = text[os.write(to, text) :]


def allocations() -> int:
    """How often this process has allocated memory of GPUs, as torch's allocator counts; 0 if it has
    none, or another allocator. This asks no GPU.
    """
    cuda = sys.modules.get("torch.cuda")
    try:
        if cuda is None or not cuda.is_initialized():
            return 0
        stats = map(cuda.memory_stats_as_nested_dict, range(cuda.device_count()))
        return sum(each["allocation"]["all"]["allocated"] for each in stats)
    except (AttributeError, KeyError, RuntimeError):
        return 0


def called() -> str:
    """Return the name of the function that the main thread is in, without Python's lock; "" if it
    runs Python, or the name is not known.
    """
    import threading

    try:
        before, until = _waits(os.getpid()), time.monotonic() + HELD
        while time.monotonic() < until:
            pass  # a thread that is about to run Python waits meanwhile
        frame: Any = sys._current_frames().get(threading.main_thread().ident or 0)
        if frame is None or _waits(os.getpid()) > before:
            return ""
    except (KeyError, OSError):  # this kernel does not tell
        return ""
    return _name_of_call(frame)


def _waits(thread: int) -> int:
    """How often a thread of this process has waited for something."""
    with open(f"/proc/self/task/{thread}/status", "rb") as f:
        lines = dict(line.split(b":", 1) for line in f)
    return int(lines[b"voluntary_ctxt_switches"])


def _name_of_call(frame: "Any") -> str:
    """Return the name of the method that a frame has called, or "" if it called something else, or
    if its arguments have branches.
    """
    import dis

    before: Any = []
    for each in dis.get_instructions(frame.f_code):
        if each.offset >= frame.f_lasti:
            break
        if each.opname not in UNCOUNTED_CODE:
            before.append(each)
    else:
        return ""
    if each.opname.startswith("CALL_INTRINSIC") or not each.opname.startswith(("CALL", "PRECALL")):
        return ""
    number = each.arg or 0
    if each.opname == "CALL_FUNCTION_EX":  # a tuple, and perhaps a dictionary
        above = 2 if sys.version_info >= (3, 14) else 1 + (number & 1)
    else:
        above = number + each.opname.endswith("_KW")
    if before and before[-1].opname == "PRECALL":
        before.pop()
    # What was loaded before the first of the arguments that lie above it on the stack.
    while before and above > 0 and before[-1].opcode not in {*dis.hasjrel, *dis.hasjabs}:
        last = before.pop()
        above -= dis.stack_effect(last.opcode, last.arg)
    if before and before[-1].opname == "PUSH_NULL":
        before.pop()
    is_method = before and ("ATTR" in before[-1].opname or "METHOD" in before[-1].opname)
    return before[-1].argval if is_method and above == 0 else ""


def recorded() -> bytes:
    """The last entries of torch's flight recorders: NCCL's, and that of all backends. "call": see
    `called`.
    """
    kept = [
        {name: value for name, value in entry.items() if not name.startswith(("input", "output"))}
        for entry in _entries(on_gpus=True)[-MOST_ENTRIES:]
    ]
    return _line({"entries": kept, "call": called()})


def arrived(since: int) -> bytes:
    """Return when collectives began since a time, in ns: {"BACKEND:GROUP": {number: when}}, on the
    monotonic clock. In a pipeline, ranks begin them one after the other: there are none then.
    "blind" says that torch records none.

    The recorder of collectives on GPUs is not asked in a training that may be healthy, since it
    queries CUDA events: those of collectives that have just ended, which are freed, and from a
    thread whose queries break the capture of a CUDA graph. A host only hands such collectives over,
    and its next step is as late as they are, so "steps" has when each step began.
    """
    ahead = time.time_ns() - time.monotonic_ns()
    entries = [entry for entry in _entries(on_gpus=False) if entry.keys() >= NEEDED]
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    meets = c10d is not None and c10d.is_initialized()
    on_gpus = any(device != "cpu" for _, device in _backends())
    passes = any(name.startswith(PIPELINES) for name in list(sys.modules))
    groups: Any = {}
    steps: Any = {}
    if not (passes or any(entry["is_p2p"] for entry in entries)):
        for entry in entries[-MOST_ARRIVALS:]:
            created = entry["time_created_ns"] - ahead
            if created > since:
                backend = entry["profiling_name"].partition(":")[0]
                times = groups.setdefault(f"{backend}:{entry['process_group'][0]}", {})
                times.setdefault(entry["collective_seq_id"], created)
        if on_gpus:
            entered = progress.entered.copy()
            steps = {step: when for step, when in entered if when > since}
    blind = meets and not (entries or passes or on_gpus)
    return _line({"arrivals": groups, "steps": steps, "blind": blind})


def _entries(*, on_gpus: bool) -> "list[dict[str, Any]]":
    """The oldest first; none of a recorder that this torch does not have. Without `on_gpus`, of
    collectives on CPUs only.
    """
    import json

    torch = sys.modules.get("torch")
    c10d = getattr(getattr(torch, "_C", None), "_distributed_c10d", None)
    names = {name for name, device in _backends() if on_gpus or device == "cpu"}
    recorders: Any = [
        ("_dump_fr_trace_json", {}),  # of gloo, and before torch 2.15 of all backends but NCCL
        *(("_dump_fr_trace_json", {"backend": name}) for name in names),
    ]
    if on_gpus:
        recorders.append(("_dump_nccl_trace_json", {}))
    entries = []
    for name, words in recorders:
        try:
            entries += json.loads(getattr(c10d, name)(True, False, **words)).get("entries", ())
        except (AttributeError, RuntimeError, TypeError, ValueError):
            continue
    entries.sort(key=lambda entry: entry.get("time_created_ns", 0))
    return entries


def _backends() -> "set[tuple[str, str]]":
    """Return {(the name of a backend, its kind of device)} of all groups, but for gloo."""
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    found = set()
    for group in [] if world is None else list(world.pg_map):
        try:
            found |= {(group._get_backend(d).name(), d.type) for d in group._device_types}
        except (AttributeError, RuntimeError):  # an older torch, or no backend yet
            continue
    return {(name, device) for name, device in found if name != "gloo"}


def _line(value: object) -> bytes:
    import json

    return json.dumps(value).encode() + b"\n"


progress = ProgressSlot()
