"""The commands that errands run: py-spy, and that of --notify. Either may take long, or hang.
Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hpclaunch.system.shared.prctl import die_with

LIMIT = 30.0  # seconds for the user's command
KILLED_LIMIT = 1.0  # seconds to wait for the end of one that was killed
MOST_READ = 4096  # bytes of its errors
MOST = 4  # processes that py-spy reads at a time


def stacks(py_spy: str, pids: Sequence[int], until: float) -> tuple[str, ...]:
    """Return py-spy's output for each process, in this order; "" where the time was over.

    py-spy stops each process while it reads large libraries.
    """

    def stack_of(pid: int) -> str:
        left = until - time.monotonic()
        if left <= 0:
            return ""
        with _file() as output, _file() as errors:
            command = [py_spy, "dump", "--native", "--pid", str(pid)]
            try:
                code = _run(command, left, subprocess.DEVNULL, output, errors)
            except OSError as e:
                return f"{py_spy}: {e.strerror}\n"
            if code is None:
                return ""
            return (_content(output) or _content(errors)).decode(errors="replace")

    with ThreadPoolExecutor(MOST) as pool:
        return tuple(pool.map(stack_of, pids))


def notify(
    command: str, event: Mapping[str, Any], mask: Collection[int] = (), limit: float = LIMIT
) -> str:
    """Run the user's command with the event. Return what was wrong; "" if nothing.

    Its output is dropped, except for the last line of its errors if it fails. `mask`: the signals
    that are blocked for it.
    """
    me = os.getpid()

    def prepare() -> None:  # system calls only: other threads are not there after the fork
        die_with(me)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    # The event is in a file: writing to a pipe would block if the command does not read it.
    with _file(json.dumps(event).encode() + b"\n") as event_file, _file() as errors:
        shell = ["/bin/sh", "-c", command]
        try:
            code = _run(shell, limit, event_file, subprocess.DEVNULL, errors, prepare)
        except OSError as e:
            return f"cannot be run: {e.strerror}"
        if code is None:
            return f"was killed: it took longer than {limit:g} s"
        if not code:
            return ""
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        errors.seek(max(0, os.fstat(errors.fileno()).st_size - MOST_READ))
        lines = errors.read().decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{how}: {said}" if said else how


def _run(
    command: Sequence[str],
    limit: float,
    stdin: Any,
    stdout: Any,
    stderr: Any,
    prepare: Callable[[], None] | None = None,
) -> int | None:
    """Run a command in a session of its own. Return its exit code; None if it took longer than the
    limit: then it was killed, with all that it has started there. Raises OSError.
    """
    streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=prepare, **streams)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILLED_LIMIT)  # a file system may hold it
        return None


def _file(content: bytes = b"") -> Any:
    """Return a file in memory, at its beginning. The reader of a pipe would wait for all
    processes that a command leaves behind.
    """
    file = os.fdopen(os.memfd_create("hpclaunch", os.MFD_CLOEXEC), "w+b", buffering=0)
    file.write(content)
    file.seek(0)
    return file


def _content(file: Any) -> bytes:
    file.seek(0)
    return bytes(file.read())
