"""In a worker: the progress of its script, for the fork server, and the notices that it takes.

Hooks in torch write each optimizer step and the phase to the worker's slot in shared memory
(`_hpclaunch_layout.py`), without a thread or a system call per step. The fork server writes there
which notice is given, and before which step (`step_notices.py`).

Where the worker is, a thread of it answers (`_hpclaunch_responder.py`). Where nobody answers,
SIGNAL has faulthandler write the stacks of all threads in C, without Python's lock. If another
thread runs Python at that moment, the worker may die of it, so the sender of SIGNAL waits for a
moment without risk (`stack_questions.py`).
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported here
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from . import _hpclaunch_layout as layout
else:
    import _hpclaunch_layout as layout

    del sys.modules["_hpclaunch_layout"]  # a script need not see it

FIRST_PAUSE, LONGEST_PAUSE = 0.0002, 0.01  # seconds between two looks whether a notice is given
MOST_ENTERED = 1000  # last steps that are kept


class Progress:
    """The progress of the process that is the worker, or of the first one below it that trains."""

    def __init__(self) -> None:
        self._slot: layout.Slot | None = None  # once this process writes to it
        self._counts: dict[int, int] = {}  # steps by optimizer
        self._most = 0  # of these
        self._others = 0  # steps in a row of optimizers that have made fewer
        self._engine: object = None  # the engine that makes a step, if any
        self._begun = False  # this process is a worker, or below one, and no template
        self._tried = 0  # the process that has tried to write to its slot
        self._raises_signal = False  # a handler of the script's runs, for a notice
        # torch's functions for hooks after and before each step of all optimizers
        self._register_after: Any = None
        self._register_before: Any = None
        self._listeners: list[Callable[[object], None]] = []  # not yet registered
        self._counts_steps = False  # the hooks that count steps are registered
        self._answering = 0  # the process that has begun to answer requests
        self.entered: list[tuple[int, int]] = []  # the last steps: (number, when begun, in ns)

    # Answers

    def begin(self) -> None:
        """At the start of every Python below a worker: print stacks on SIGNAL from now on."""
        place = layout.Place.of_environment()
        if place is None:
            return
        self._begun = True
        try:
            with layout.Opened(place.server, place.memory) as fd:
                if not claim(fd, place.slot, layout.ANSWERER):
                    return
            _print_stacks(place)
        except (ImportError, OSError):
            pass  # no faulthandler, or the fork server is gone, or in another namespace

    def answer(self) -> None:
        """Begin to answer requests: there is a process group or an optimizer, so torch has threads
        in any case."""
        place, slot = layout.Place.of_environment(), self.slot()
        if place is None or slot is None or self._answering == os.getpid():
            return
        self._answering = os.getpid()
        try:
            hooks: Any = sys.modules["_hpclaunch_hooks"]
            hooks.beside("_hpclaunch_responder").start(place, slot)
        except Exception:  # noqa: S110  # a thread too many, or the script has emptied sys.modules
            pass

    # The slot

    def slot(self) -> "layout.Slot | None":
        """Return the slot that this process writes to. A process that it has forked has none."""
        if self._begun and self._tried != os.getpid():
            self._tried = os.getpid()
            self._slot = None
            place = layout.Place.of_environment()
            if place is not None:
                self._attach(place)
        return self._slot

    def _detach(self) -> None:
        self._slot = None

    def _attach(self, place: "layout.Place") -> None:
        begin = place.slot * layout.SLOT
        try:
            with layout.Opened(place.server, place.memory) as fd:
                if not claim(fd, place.slot, layout.WRITER):
                    return
                # Erase what another program has left.
                fields = (
                    layout.NUMBER,
                    layout.ASKS,
                    layout.ENTERED,
                    layout.RESPONDER,
                    layout.MAKES,
                )
                for field in (*range(layout.WRITER), *fields, layout.ALLOCATED, layout.HANDLED):
                    os.pwrite(fd, bytes(8), begin + 8 * field)
                self._slot = slot = layout.Slot(_mapped(fd)[begin : begin + layout.SLOT])
            import atexit

            atexit.register(self._end)
            os.register_at_fork(after_in_child=self._detach)
            if (
                slot.numbers[layout.ANSWERER] != os.getpid()
            ):  # a launcher of the script's only waits
                slot.numbers[layout.ANSWERER] = os.getpid()
                _print_stacks(place)
        except (ImportError, OSError):
            pass  # as above

    def _end(self) -> None:
        """Note that the script has ended, and which signals it handles: Python resets them next."""
        slot = self.slot()
        if slot is not None:
            import _signal  # type: ignore[import-not-found]  # the module in C

            changed = (
                s for s in range(1, layout.SIGNAL) if _signal.getsignal(s) != _signal.SIG_DFL
            )
            slot.numbers[layout.HANDLED] = sum(1 << s for s in changed)
            self.phase(layout.END)

    # Phases

    def phase(self, number: int, among: "Any" = range(layout.OTHER + 1)) -> None:
        """Begin a phase, if the current one is another of those."""
        slot = self.slot()
        if slot is not None and slot.numbers[layout.PHASE] in among:
            _turn_to(slot, number)

    def saves(self, function: "Any") -> "Any":
        """Wrap a function that saves: while it runs in the main thread, the phase is "save"."""
        import functools
        import threading

        @functools.wraps(function)
        def saving(*args: "Any", **kwargs: "Any") -> "Any":
            main = threading.current_thread() is threading.main_thread()
            slot = self.slot() if main else None
            before = layout.START if slot is None else slot.numbers[layout.PHASE]
            if before not in (layout.FIRST_STEP, layout.STEPS):
                return function(*args, **kwargs)
            self.phase(layout.SAVE)
            try:
                return function(*args, **kwargs)
            finally:
                self.phase(before, among=(layout.SAVE,))

        return saving

    def enter(self, name: str) -> None:
        """Begin the phase that the script names."""
        self.phase(layout.PHASES.index(name) if name in layout.PHASES else layout.OTHER)

    # Steps

    def step(self, number: int) -> None:
        """Count a step for a script that counts for itself. Its numbers may begin anywhere."""
        slot = self.slot()
        if slot is not None:
            slot.numbers[layout.MAKES] = 1
            self.entering(None)
            slot.numbers[layout.NUMBER] = int(number)
            self.stepped(None)

    def stepped(self, optimizer: object, monotonic: "Any" = time.monotonic) -> None:
        """Count a step of an optimizer. This runs after each one, so it is short.

        The optimizer that has made the most steps leads: its steps count, and others make theirs in
        between. If they continue without it, as where one model is trained after another, the next
        one to step gets as many steps as it has. So the count depends only on the order of the
        steps, which is the same on all ranks.
        """
        slot = self._slot
        if slot is None:
            return
        if self._engine is None:
            which = id(optimizer)
            count = self._counts.get(which, 0) + 1
            if count > self._most:
                slot.numbers[layout.STEP] = self._most = count
                self._others = 0
            elif count < self._most:
                self._others += 1
                if self._others >= layout.IN_A_ROW:
                    count, self._others = self._most, 0
            self._counts[which] = count
            if slot.numbers[layout.PHASE] != layout.STEPS:
                _turn_to(slot, layout.STEPS)
        slot.times[layout.TIME] = monotonic()

    def entering(self, optimizer: object) -> None:
        """Begin a step of an optimizer. This runs before each one, so it is short."""
        slot = self._slot
        if slot is None or self._engine is not None:
            return
        number = self._counts.get(id(optimizer), 0) + 1
        if number > self._most:
            slot.numbers[layout.ENTERED] = number
            self.entered.append((number, time.monotonic_ns()))
            del self.entered[:-MOST_ENTERED]
            if number >= slot.numbers[layout.STEP_OF_NOTICE]:
                self._take_notice(slot.numbers, number)

    def _take_notice(self, numbers: "memoryview[int]", step: int) -> None:
        """Wait at the step of a notice until it is known whether the notice is given there.

        All ranks take it before the same step, or none does. So no time-out ends this: the agent
        gives or withdraws the notice, or ends the worker.
        """
        pause = FIRST_PAUSE
        while (
            step >= numbers[layout.STEP_OF_NOTICE]
            and numbers[layout.TAKEN] != numbers[layout.NOTICE]
        ):
            # The step is read again: another notice may have been offered since.
            if (
                numbers[layout.GIVEN] == numbers[layout.NOTICE]
                and step >= numbers[layout.STEP_OF_NOTICE]
            ):
                numbers[layout.TAKEN] = numbers[layout.NOTICE]
                self._raises_signal = True
                try:
                    _raise_signal(numbers[layout.SIGNUM])
                finally:
                    self._raises_signal = False
                return
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def due(self) -> bool:
        """Return whether notice was given, and this rank is at its step, or makes none."""
        slot = self.slot()
        if slot is None:
            return False
        numbers = slot.numbers
        numbers[layout.ASKS] = 1
        if numbers[layout.TAKEN]:
            return True
        given = numbers[layout.GIVEN]
        if given and not (numbers[layout.MAKES] or numbers[layout.ENTERED]):
            numbers[layout.TAKEN] = given  # whatever is offered next
            return True
        at_its_step = numbers[layout.ENTERED] >= numbers[layout.STEP_OF_NOTICE]
        return bool(given > 0 and given == numbers[layout.NOTICE] and at_its_step)

    def unseen(self) -> None:
        """Record that an optimizer is part of compiled code, so its steps are not seen."""
        slot = self.slot()
        if slot is not None:
            slot.numbers[layout.MAKES] = 0
            self.phase(layout.START, among=(layout.FIRST_STEP,))

    # Hooks

    def watch_groups(self, c10d: "ModuleType") -> None:
        """Watch torch.distributed.distributed_c10d."""
        _wrap(c10d, "init_process_group", self._meets, self._has_met)

    def watch_optimizers(self, optimizer: "Any") -> None:
        """Watch torch.optim.optimizer."""
        register = getattr(optimizer, "register_optimizer_step_post_hook", None)
        if register is not None:
            self._register_after = register
            self._register_before = optimizer.register_optimizer_step_pre_hook
            _wrap(optimizer.Optimizer, "_patch_step_function", self._made)

    def listen(self, function: "Callable[[object], None]") -> None:
        """Have a function called with the optimizer after each step, once there is one."""
        self._listeners.append(function)

    def watch_saves(self, serialization: "Any") -> None:
        """Watch torch.serialization."""
        if hasattr(serialization, "save"):
            serialization.save = self.saves(serialization.save)

    def watch_scalers(self, scaler: "ModuleType") -> None:
        """Watch torch.amp.grad_scaler. When it skips a step, no optimizer makes one, but the
        training continues."""
        _wrap(getattr(scaler, "GradScaler", None), "update", self._moved)

    def watch_engines(self, engine: "ModuleType") -> None:
        """Watch deepspeed.runtime.engine. With ZeRO, a step of an engine is several of its
        optimizer, one for each group of weights. In between, the weights are those of no step."""
        kind = getattr(engine, "DeepSpeedEngine", None)
        _wrap(kind, "_take_model_step", self._begins, self._ends)

    def watch_requests(self, trainer: "ModuleType") -> None:
        """Watch transformers.trainer_jit_checkpoint. Its handler of SIGTERM has a timer request a
        checkpoint 3 s later, when some ranks may be a step ahead. They take a notice at one step,
        so the checkpoint is requested there."""
        _wrap(getattr(trainer, "CheckpointManager", None), "_sigterm_handler", self._requested)

    def watch_graphs(self, graphs: "ModuleType") -> None:
        """Watch torch.cuda.graphs. A step that is part of a graph is not seen."""
        _wrap(getattr(graphs, "CUDAGraph", None), "replay", self._moved)

    def _meets(self, *_: object) -> None:
        self.phase(layout.RENDEZVOUS, among=(layout.START,))

    def _has_met(self) -> None:
        """End the rendezvous, be it successful or not."""
        # It may be a server that waits for requests.
        self.phase(layout.START, among=(layout.RENDEZVOUS,))
        self.answer()

    def _made(self, optimizer: object) -> None:
        """Note that an optimizer was made, or its state loaded. It has as many steps as the leading
        one."""
        slot = self.slot()
        if slot is not None:
            # Not if its state is loaded. Another one had its id before, on some ranks.
            if "state" not in vars(optimizer):
                self._counts[id(optimizer)] = self._most
            if not self._counts_steps:
                self._counts_steps = True
                self.listen(self.stepped)
                self._register_before(_hook_before(self.entering))
            slot.numbers[layout.MAKES] = 1
            self.phase(layout.FIRST_STEP, among=(layout.START, layout.RENDEZVOUS))
            self.answer()
        while self._listeners:
            self._register_after(_hook_after(self._listeners.pop()))

    def _begins(self, engine: object) -> None:
        self.entering(engine)
        self._engine = engine

    def _ends(self) -> None:
        engine, self._engine = self._engine, None
        self.stepped(engine)

    def _requested(self, manager: "Any") -> None:
        if self._raises_signal:
            manager.is_checkpoint_requested = True

    def _moved(self, *_: object) -> None:
        if self._slot is not None:
            self._slot.times[layout.TIME] = time.monotonic()


def _turn_to(slot: "layout.Slot", phase: int) -> None:
    """Begin another phase, and add the time of the last one to what was spent."""
    now = time.monotonic()
    counted = layout.counted_as(
        slot.numbers[layout.PHASE], slot.times[layout.SPENT + layout.MEETING]
    )
    if counted != layout.UNCOUNTED and slot.times[layout.SINCE]:
        slot.times[layout.SPENT + counted] += now - slot.times[layout.SINCE]
    slot.times[layout.SINCE] = now
    slot.numbers[layout.PHASE] = phase


def _wrap(
    owner: "Any",
    name: str,
    before: "Callable[..., None]",
    after: "Callable[[], None] | None" = None,
) -> None:
    """Have `before` called with the first argument before each call of a function, and `after`
    after it."""
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


def _hook_before(entering: "Callable[[object], None]") -> "Callable[..., None]":
    """Return a hook that leaves nothing in a compiled step, where torch.compile knows its
    condition."""
    from torch.compiler import is_dynamo_compiling

    def before_step(optimizer: object, _args: object, _kwargs: object) -> None:
        if not is_dynamo_compiling():
            entering(optimizer)

    return before_step


def _hook_after(stepped: "Callable[[object], None]") -> "Callable[..., None]":
    """Return a hook that calls `stepped`. torch.compile traces the hook along with a compiled
    optimizer, and cannot trace most of what it could do. What is one graph without it must stay
    one."""
    # torch imports it for the first optimizer that is made, a moment later.
    from torch._dynamo.comptime import comptime

    def after_step(optimizer: object, _args: object, _kwargs: object) -> None:
        comptime(_while_compiling, lambda: stepped(optimizer))

    return after_step


def _while_compiling(_context: object) -> None:
    progress.unseen()


def _raise_signal(signum: int) -> None:
    """Raise a signal in this process, if the script handles it. In the main thread, the handler has
    run when this returns."""
    import _signal  # the module in C

    if not signum:
        handled = (s for s in layout.NOTICE_SIGNALS if callable(_signal.getsignal(s)))
        signum = next(handled, 0)
    if signum and _signal.getsignal(signum) != _signal.SIG_DFL:
        _signal.raise_signal(signum)


def claim(fd: int, slot: int, field: int) -> bool:
    """Have a field of a slot name this process, unless it names another one that lives. Return
    whether it does: of several Pythons below one worker, the first one has the slot."""
    at = slot * layout.SLOT + 8 * field
    known = int.from_bytes(os.pread(fd, 8, at), sys.byteorder)
    if known and known != os.getpid() and os.path.exists(f"/proc/{known}"):
        return False
    os.pwrite(fd, os.getpid().to_bytes(8, sys.byteorder), at)
    return True


def _mapped(fd: int) -> memoryview:
    """Return the whole file as memory. Python's mmap would keep a descriptor open; torch has loaded
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


def _print_stacks(place: "layout.Place") -> None:
    import _signal  # the module in C

    if _signal.getsignal(layout.SIGNAL) != _signal.SIG_DFL:
        return  # somebody's own
    handler = faulthandler()
    with layout.Opened(place.server, place.stacks, os.O_WRONLY | os.O_APPEND) as fd:
        high = dup_high(fd, layout.HIGH)
    handler.register(layout.SIGNAL, file=high, all_threads=True, chain=False)


def faulthandler() -> "Any":
    """Return the module, and leave it in `sys.modules` only if it was there."""
    known = "faulthandler" in sys.modules
    import faulthandler

    if not known:
        del sys.modules["faulthandler"]
    return faulthandler


def dup_high(fd: int, numbers: "tuple[int, ...]") -> int:
    """Duplicate a descriptor as the first of these numbers that is free and allowed."""
    for number in numbers:
        try:
            os.fstat(number)
        except OSError:  # it is free
            try:
                return os.dup2(fd, number, inheritable=False)
            except OSError:
                pass  # above the limit
    raise OSError


progress = Progress()
