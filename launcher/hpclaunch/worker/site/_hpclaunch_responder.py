"""In a worker: the responder, a thread that answers the fork server's requests.

It starts once the script has a process group or an optimizer. It reads requests from a pipe, one
byte each. faulthandler writes the stacks of all threads to one file. torch's flight recorder goes
to another file as a line of JSON, with the name of the function in which the main thread waits.

The responder holds the GIL meanwhile, so no other thread runs Python. A rank that waits in a
collective has released the GIL.
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported here
    from typing import Any

    from . import _hpclaunch_layout as layout
    from ._hpclaunch_progress import dup_high, faulthandler, progress
else:
    from _hpclaunch_progress import dup_high, faulthandler, layout, progress  # loaded before

HELD = 0.02  # seconds to hold the GIL; a thread that waits for it wakes every 5 ms
PIPELINES = ("torch.distributed.pipelining.", "deepspeed.runtime.pipe.")
MOST_ENTRIES, MOST_ARRIVALS = 500, 1000  # entries of flight recorders
NEEDED = {"collective_seq_id", "is_p2p", "process_group", "profiling_name", "time_created_ns"}
UNCOUNTED_CODE = ("EXTENDED_ARG", "KW_NAMES")  # opcodes that change nothing on the stack
MOST_THREADS = 100  # faulthandler writes the stacks of so many threads, the newest first
MOST_FRAMES = 100  # of a stack, as in faulthandler


def start(place: "layout.Place", slot: "layout.Slot") -> None:
    """Start the thread. Raises RuntimeError if the kernel grants none."""
    import _thread

    _thread.start_new_thread(_answer, (place, slot, faulthandler()))


def _answer(place: "layout.Place", slot: "layout.Slot", handler: "Any") -> None:
    import _signal  # type: ignore[import-not-found]  # the module in C
    from _thread import get_native_id

    # This thread takes no signal that the script waits for in another thread. While it handles
    # SIGNAL, SIGNAL is blocked and SIGNAL + 1 is not: `is_answering` relies on this.
    both = {layout.SIGNAL, layout.SIGNAL + 1}
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals() - both)
    try:
        with layout.Opened(place.server, place.requests, os.O_RDONLY) as fd:
            high = dup_high(fd, layout.HIGH_TOO)
        since, slot.numbers[layout.RESPONDER] = 0, get_native_id()
        while asked := os.read(high, 1):
            if asked == layout.ARRIVALS:
                text, since = arrived(since), time.monotonic_ns()
                _append(place, text)
                continue
            if asked == layout.ALLOCATIONS:
                slot.numbers[layout.ALLOCATED] = allocations()
                continue
            with layout.Opened(place.server, place.stacks, os.O_WRONLY | os.O_APPEND) as to:
                os.write(to, layout.BEGUN)
                handler.dump_traceback(to, all_threads=True)
                os.write(to, _left_out() + layout.WRITTEN)
            if asked == layout.ENTRIES:
                _append(place, recorded())
    except (OSError, RuntimeError):
        pass  # the fork server is gone, or there are too many open files


def _left_out() -> bytes:
    """Return the main thread's stack in faulthandler's format, if faulthandler leaves it out
    because there are too many newer threads; else b""."""
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


def _append(place: "layout.Place", text: bytes) -> None:
    with layout.Opened(place.server, place.records, os.O_WRONLY | os.O_APPEND) as to:
        while text:
            text = text[os.write(to, text) :]


def allocations() -> int:
    """Return how often torch's allocator has allocated GPU memory in this process; 0 if torch has
    none. This queries no GPU."""
    cuda = sys.modules.get("torch.cuda")
    try:
        if cuda is None or not cuda.is_initialized():
            return 0
        stats = map(cuda.memory_stats_as_nested_dict, range(cuda.device_count()))
        return sum(each["allocation"]["all"]["allocated"] for each in stats)
    except (AttributeError, KeyError, RuntimeError):
        return 0


def called() -> str:
    """Return the name of the function in which the main thread waits without the GIL; "" if
    it runs Python, or if the name is not known."""
    import threading

    try:
        before, until = _waits(os.getpid()), time.monotonic() + HELD
        while time.monotonic() < until:
            pass  # meanwhile, a thread that could run Python waits for the GIL
        frame: Any = sys._current_frames().get(threading.main_thread().ident or 0)
        if frame is None or _waits(os.getpid()) > before:
            return ""
        return _name_of_call(frame)
    except (KeyError, OSError, ValueError):  # unknown to this kernel, or to `dis`
        return ""


def _waits(thread: int) -> int:
    """Return how often a thread of this process has waited: its voluntary context switches."""
    with open(f"/proc/self/task/{thread}/status", "rb") as f:
        lines = dict(line.split(b":", 1) for line in f)
    return int(lines[b"voluntary_ctxt_switches"])


def _name_of_call(frame: "Any") -> str:
    """Return the name of the method that a frame is calling; "" if it calls something else, or if
    the arguments contain branches."""
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
    # Find what was pushed before the `above` values on top of the stack: the function.
    while before and above > 0 and before[-1].opcode not in {*dis.hasjrel, *dis.hasjabs}:
        last = before.pop()
        above -= dis.stack_effect(last.opcode, last.arg)
    if before and before[-1].opname == "PUSH_NULL":
        before.pop()
    is_method = before and ("ATTR" in before[-1].opname or "METHOD" in before[-1].opname)
    return before[-1].argval if is_method and above == 0 else ""


def recorded() -> bytes:
    """Return the last entries of torch's flight recorders, and as "call" the function in which the
    main thread waits."""
    kept = [
        {name: value for name, value in entry.items() if not name.startswith(("input", "output"))}
        for entry in _entries(on_gpus=True)[-MOST_ENTRIES:]
    ]
    return _line({"entries": kept, "call": called()})


def arrived(since: int) -> bytes:
    """Return the times in ns, on the monotonic clock, at which collectives began after `since`:
    {"BACKEND:GROUP": {number: time}}. In a pipeline there are none, since its ranks begin them one
    after the other. "blind" means that torch records none.

    The recorder of collectives on GPUs is not read in a training that may be healthy. It queries
    the CUDA events of collectives that have just ended, which may be freed already, and a query
    from this thread breaks the capture of a CUDA graph. The host only enqueues such collectives,
    and its next step is as late as they are. So "steps" has the time at which each step began.
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
    """Return the entries of all recorders that this torch has, the oldest first; without `on_gpus`,
    only those of collectives on CPUs."""
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
    """Return {(name of a backend, type of its device)} of all process groups, except for gloo."""
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
