"""Writes the exception that ends a worker to TORCHELASTIC_ERROR_FILE, as torch's @record does.

Python stores an unhandled exception (sys.last_value) before it shows it, and runs atexit callbacks
later. One callback, registered before all others and so the last to run, writes the file;
sys.excepthook is left to the script.

Only the worker's own failure counts. A Python below another Python writes nothing: the parent may
handle the failure, or else fails itself. If the worker is another program, such as a shell script,
the Python that failed last writes the file. A file that @record or a launcher in the worker has
written is kept. Files from this module end in a newline; torch's do not.
"""

import os
import sys

_atexit_was_there = "atexit" in sys.modules
import atexit  # noqa: E402

if not _atexit_was_there and sys.version_info >= (3, 10):
    # The interpreter keeps the callbacks; older Pythons keep them in the module.
    del sys.modules["atexit"]

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported here
    from types import TracebackType

    from ._hpclaunch_ownership import is_ours
else:
    from _hpclaunch_ownership import is_ours

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
PR_GET_PDEATHSIG = 2  # linux/prctl.h; only the standard library can be imported here

_process = 0  # the pid whose exception is recorded; a fork has another pid


def record_errors() -> None:
    """Record an exception that ends this process. A fork that is a worker calls it again."""
    global _process
    if not _process:
        atexit.register(_at_exit)
    _process = os.getpid()


def _at_exit() -> None:
    try:
        error, path = getattr(sys, "last_value", None), os.environ.get(ERROR_FILE)
        # torch ignores SystemExit and KeyboardInterrupt, too.
        if not (path and isinstance(error, Exception) and _process == os.getpid()):
            return
        if went_through_all(error.__traceback__) and is_the_workers():
            write(path, described(error))
    except BaseException:  # noqa: S110
        pass  # even if a signal handler raised it: users must see only the script's exception


def went_through_all(trace: "TracebackType | None") -> bool:
    """Return whether an exception went unhandled. Shells and test runners set sys.last_value for
    handled ones, too."""
    return trace is None or trace.tb_frame.f_back is None


def is_the_workers() -> bool:
    """Return whether this is the worker, or no process from its parent up to the worker is a
    Python."""
    pid, leader = os.getpid(), os.getsid(0)
    if pid == leader:
        return dies_with_its_parent()
    while pid != leader:
        # Raises OSError if the worker is gone: then this is not the worker's failure.
        pid = parent(pid)
        if is_python(pid):
            return False
    return True


def dies_with_its_parent() -> bool:
    """Return whether this process gets SIGKILL when its parent dies. The fork server sets this for
    workers; other programs that create sessions, such as torchrun, do not."""
    import ctypes
    import signal

    signum = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(signum), 0, 0, 0)
    return signum.value == signal.SIGKILL


def parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as f:
        return int(f.read().rpartition(b")")[2].split()[1])


def is_python(pid: int) -> bool:
    try:
        program = os.readlink(f"/proc/{pid}/exe")
    except PermissionError:
        return False  # another user's process
    own = os.readlink("/proc/self/exe")
    return program == own or os.path.basename(program).startswith(("python", "pypy"))


def described(error: Exception) -> bytes:
    """Return an exception in the format of torch.distributed.elastic.multiprocessing.errors."""
    import json
    import time
    import traceback

    callstack = traceback.format_exception(type(error), error, error.__traceback__)
    data = {
        "message": {
            "message": f"{type(error).__name__}: {error}",
            "extraInfo": {
                "py_callstack": "".join(callstack),
                "timestamp": str(int(time.time())),
            },
        }
    }
    return json.dumps(data).encode() + b"\n"


def write(path: str, text: bytes) -> None:
    with open(path, "a+b", opener=open_own) as f:
        f.seek(0)
        if f.read()[-1:] in (b"", b"\n"):
            f.truncate(0)
            f.write(text)


def open_own(path: str, flags: int) -> int:
    """Open a file as worker/private_files.py does: another user may have put a link or a pipe in
    its place."""
    import stat

    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    found = os.fstat(fd)
    own = is_ours(found, os.path.dirname(path))
    if not (own and stat.S_ISREG(found.st_mode)) or found.st_nlink > 1:
        os.close(fd)
        raise OSError(path)
    return fd
