"""In a worker: records the progress of its script for the fork server, and takes notices.

Hooks in torch write each optimizer step and the phase to the worker's slot in shared memory
(`_hpclaunch_layout.py`), without a thread or a system call per step. The fork server writes there
which notice is given, and before which step (`step_notices.py`).

A thread answers the fork server's requests for stacks (`_hpclaunch_responder.py`). Without it,
SIGNAL has faulthandler write the stacks of all threads in C, without the GIL. If another
thread runs Python at that moment, the worker may crash, so the sender of SIGNAL waits for a safe
moment (`stack_questions.py`).
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

    del sys.modules["_hpclaunch_layout"]  # keep it out of the script's sight

FIRST_PAUSE, LONGEST_PAUSE = 0.0002, 0.01  # seconds between two checks for a notice
MOST_ENTERED = 1000  # number of recent steps to keep
# The fields of a slot that an earlier process may have left
LEFT = (*range(layout.WRITER), layout.NUMBER, layout.ASKS, layout.ENTERED)
LEFT += (layout.RESPONDER, layout.MAKES, layout.ALLOCATED, layout.HANDLED)


class Progress:
    """The progress of the worker's process, or of the first process below it that trains."""

    def __init__(self) -> None:
        self._slot: layout.Slot | None = None  # set once this process writes to it
        self._counts: dict[int, int] = {}  # optimizer's id -> steps
        self._most = 0  # the largest of these counts
        self._others = 0  # steps in a row of optimizers with smaller counts
        self._engine: object = None  # the DeepSpeed engine that is making a step, if any
        self._begun = False  # this process is a worker or below one, and not the template
        self._tried = 0  # the pid that has tried to write to its slot
        self._raises_signal = False  # the script's handler is running for a notice
        # torch's functions that register hooks after and before the steps of all optimizers
        self._register_after: Any = None
        self._register_before: Any = None
        self._listeners: list[Callable[[object], None]] = []  # not yet registered as hooks
        self._counts_steps = False  # whether the hooks that count steps are registered
        self._answering = 0  # the pid that has begun to answer requests
        self.entered: list[tuple[int, int]] = []  # the last steps: (number, begin in ns)

    # Answers

    def begin(self) -> None:
        """Write stacks on SIGNAL from now on. Every Python below a worker calls this first."""
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
            pass  # no faulthandler; or the fork server is gone, or in another namespace

    def answer(self) -> None:
        """Start the responder. Called once there is a process group or an optimizer, when torch has
        threads in any case."""
        place, slot = layout.Place.of_environment(), self.slot()
        if place is None or slot is None or self._answering == os.getpid():
            return
        self._answering = os.getpid()
        try:
            hooks: Any = sys.modules["_hpclaunch_hooks"]
            hooks.beside("_hpclaunch_responder").start(place, slot)
        except Exception:  # noqa: S110  # no thread granted, or the script has emptied sys.modules
            pass

    # The slot

    def slot(self) -> "layout.Slot | None":
        """Return the slot that this process writes to; None in a process that it has forked."""
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
                memory = _mapped(fd)
                if not claim(fd, place.slot, layout.WRITER):
                    return
                for field in LEFT:
                    os.pwrite(fd, bytes(8), begin + 8 * field)
                self._slot = slot = layout.Slot(memory[begin : begin + layout.SLOT])
            import atexit

            atexit.register(self._end)
            os.register_at_fork(after_in_child=self._detach)
            # The answerer so far may be a launcher, which only waits.
            if slot.numbers[layout.ANSWERER] != os.getpid():
                slot.numbers[layout.ANSWERER] = os.getpid()
                _print_stacks(place)
        except (ImportError, OSError):
            pass  # as in `begin`

    def _end(self) -> None:
        """Record the signals that the script handles, before Python resets them, and its end."""
        slot = self.slot()
        if slot is not None:
            import _signal  # type: ignore[import-not-found]  # the module in C

            default, signals = _signal.SIG_DFL, range(1, layout.SIGNAL)
            changed = (s for s in signals if _signal.getsignal(s) != default)
            slot.numbers[layout.HANDLED] = sum(1 << s for s in changed)
            self.phase(layout.END)

    # Phases

    def phase(self, number: int, among: "Any" = range(layout.OTHER + 1)) -> None:
        """Begin a phase, if the current phase is in `among`."""
        slot = self.slot()
        if slot is not None and slot.numbers[layout.PHASE] in among:
            _turn_to(slot, number)

    def saves(self, function: "Any") -> "Any":
        """Wrap a function: while it runs in the main thread of a training, the phase is "save"."""
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
        """Count a step for a script that counts its own steps. Its numbers may begin anywhere."""
        slot = self.slot()
        if slot is not None:
            slot.numbers[layout.MAKES] = 1
            self.entering(None)
            slot.numbers[layout.NUMBER] = int(number)
            self.stepped(None)

    def stepped(self, optimizer: object, monotonic: "Any" = time.monotonic) -> None:
        """Count a step of an optimizer. This runs after each step, so it is short.

        The optimizer with the most steps leads: only its steps count, and others step in between.
        If the others continue without it, as when one model is trained after another, the next
        optimizer to step gets the leader's count. So the count depends only on the order of the
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
        """Begin a step of an optimizer. This runs before each step, so it is short."""
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
        """Wait before the step of a notice, and take the notice if it is given.

        All ranks take it before the same step, or none does. So there is no time-out: the agent
        gives or withdraws the notice, or ends the worker.
        """
        pause = FIRST_PAUSE
        while (
            step >= numbers[layout.STEP_OF_NOTICE]
            and numbers[layout.TAKEN] != numbers[layout.NOTICE]
        ):
            # Read the step again: another notice may have been offered meanwhile.
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
        """Return whether notice was given, and this rank is at its step or makes no steps."""
        slot = self.slot()
        if slot is None:
            return False
        numbers = slot.numbers
        numbers[layout.ASKS] = 1
        if numbers[layout.TAKEN]:
            return True
        given = numbers[layout.GIVEN]
        if given and not (numbers[layout.MAKES] or numbers[layout.ENTERED]):
            numbers[layout.TAKEN] = given  # later calls return True, whatever is offered next
            return True
        at_its_step = numbers[layout.ENTERED] >= numbers[layout.STEP_OF_NOTICE]
        return bool(given > 0 and given == numbers[layout.NOTICE] and at_its_step)

    def unseen(self) -> None:
        """Record that an optimizer's steps are not seen, since they are part of compiled code."""
        slot = self.slot()
        if slot is not None:
            slot.numbers[layout.MAKES] = 0
            self.phase(layout.START, among=(layout.FIRST_STEP,))

    # Hooks

    def watch_groups(self, c10d: "ModuleType") -> None:
        """Watch torch.distributed.distributed_c10d."""
        wrap(c10d, "init_process_group", self._meets, self._has_met)

    def watch_optimizers(self, optimizer: "Any") -> None:
        """Watch torch.optim.optimizer."""
        register = getattr(optimizer, "register_optimizer_step_post_hook", None)
        if register is not None:
            self._register_after = register
            self._register_before = optimizer.register_optimizer_step_pre_hook
            wrap(optimizer.Optimizer, "_patch_step_function", self._made)

    def listen(self, function: "Callable[[object], None]") -> None:
        """Call `function` with the optimizer after each step, once there is an optimizer."""
        self._listeners.append(function)

    def watch_saves(self, serialization: "Any") -> None:
        """Watch torch.serialization."""
        if hasattr(serialization, "save"):
            serialization.save = self.saves(serialization.save)

    def watch_scalers(self, scaler: "ModuleType") -> None:
        """Watch torch.amp.grad_scaler. When it skips an optimizer step, the training still makes
        progress."""
        wrap(getattr(scaler, "GradScaler", None), "update", self._moved)

    def watch_engines(self, engine: "ModuleType") -> None:
        """Watch deepspeed.runtime.engine. With ZeRO, a step of the engine is several optimizer
        steps, one for each group of weights. Between them, the weights are inconsistent."""
        kind = getattr(engine, "DeepSpeedEngine", None)
        wrap(kind, "_take_model_step", self._begins, self._ends)

    def watch_requests(self, trainer: "ModuleType") -> None:
        """Watch transformers.trainer_jit_checkpoint. Its handler of SIGTERM starts a timer, which
        requests a checkpoint after 3 s, when some ranks may be a step ahead. For a notice, which
        all ranks take before the same step, request the checkpoint at once."""
        wrap(getattr(trainer, "CheckpointManager", None), "_sigterm_handler", self._requested)

    def watch_graphs(self, graphs: "ModuleType") -> None:
        """Watch torch.cuda.graphs: the steps that are part of a graph are not seen."""
        wrap(getattr(graphs, "CUDAGraph", None), "replay", self._moved)

    def _meets(self, *_: object) -> None:
        self.phase(layout.RENDEZVOUS, among=(layout.START,))

    def _has_met(self) -> None:
        """End the rendezvous, successful or not. Begin START again: a server may never train."""
        self.phase(layout.START, among=(layout.RENDEZVOUS,))
        self.answer()

    def _made(self, optimizer: object) -> None:
        """Record that an optimizer was created, with as many steps as the leading one, or that it
        has loaded its state."""
        slot = self.slot()
        if slot is not None:
            # An optimizer that loads its state keeps its count. A new one may have the id of one
            # that was freed, perhaps on some ranks only, but must not have its count.
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
    """Begin another phase, and add the time of the last phase to SPENT."""
    now = time.monotonic()
    counted = layout.counted_as(
        slot.numbers[layout.PHASE], slot.times[layout.SPENT + layout.MEETING]
    )
    if counted != layout.UNCOUNTED and slot.times[layout.SINCE]:
        slot.times[layout.SPENT + counted] += now - slot.times[layout.SINCE]
    slot.times[layout.SINCE] = now
    slot.numbers[layout.PHASE] = phase


def wrap(
    owner: "Any",
    name: str,
    before: "Callable[..., None]",
    after: "Callable[[], None] | None" = None,
) -> None:
    """Call `before` with the first argument before each call of a function, and `after` after
    it."""
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
    """Return a hook that calls `entering`. If torch.compile can evaluate the hook's condition,
    compiled code contains nothing of the hook."""
    from torch.compiler import is_dynamo_compiling

    def before_step(optimizer: object, _args: object, _kwargs: object) -> None:
        if not is_dynamo_compiling():
            entering(optimizer)

    return before_step


def _hook_after(stepped: "Callable[[object], None]") -> "Callable[..., None]":
    """Return a hook that calls `stepped`. torch.compile traces it together with an optimizer. The
    hook must not break the optimizer's graph, so it may call only `comptime`."""
    # torch imports this module soon in any case, for the first optimizer that is created.
    from torch._dynamo.comptime import comptime

    def after_step(optimizer: object, _args: object, _kwargs: object) -> None:
        comptime(_while_compiling, lambda: stepped(optimizer))

    return after_step


def _while_compiling(_context: object) -> None:
    progress.unseen()


def _raise_signal(signum: int) -> None:
    """Raise a signal in this process, if the script handles it. In the main thread, the handler
    runs before this returns."""
    import _signal  # the module in C

    if not signum:
        handled = (s for s in layout.NOTICE_SIGNALS if callable(_signal.getsignal(s)))
        signum = next(handled, 0)
    if signum and _signal.getsignal(signum) != _signal.SIG_DFL:
        _signal.raise_signal(signum)


def claim(fd: int, slot: int, field: int) -> bool:
    """Write this process's pid to a field of a slot, unless it names another living process. Return
    whether it was written. Of several Pythons below one worker, the first one succeeds."""
    at = slot * layout.SLOT + 8 * field
    while True:
        try:
            os.lockf(fd, os.F_LOCK, 0)  # until the descriptor is closed
            break
        except InterruptedError:  # Python does not call this one again after a signal's handler
            pass
    known = int.from_bytes(os.pread(fd, 8, at), sys.byteorder)
    if known and known != os.getpid() and os.path.exists(f"/proc/{known}"):
        return False
    os.pwrite(fd, os.getpid().to_bytes(8, sys.byteorder), at)
    return True


def _mapped(fd: int) -> memoryview:
    """Map a whole file into memory. Python's mmap would keep a descriptor open; torch loads ctypes
    in any case."""
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
        return  # the signal is in use
    handler = faulthandler()
    with layout.Opened(place.server, place.stacks, os.O_WRONLY | os.O_APPEND) as fd:
        high = dup_high(fd, layout.HIGH)
    handler.register(layout.SIGNAL, file=high, all_threads=True, chain=False)


def faulthandler() -> "Any":
    """Return the module `faulthandler`, without adding it to `sys.modules`."""
    known = "faulthandler" in sys.modules
    import faulthandler

    if not known:
        del sys.modules["faulthandler"]
    return faulthandler


def dup_high(fd: int, numbers: "tuple[int, ...]") -> int:
    """Duplicate a descriptor to the first of these numbers that is free and below the limit."""
    for number in numbers:
        try:
            os.fstat(number)
        except OSError:  # it is free
            try:
                return os.dup2(fd, number, inheritable=False)
            except OSError:
                pass  # not below the limit
    raise OSError


progress = Progress()
