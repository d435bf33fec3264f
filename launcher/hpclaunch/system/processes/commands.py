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
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hpclaunch.system.shared.prctl import die_with

LIMIT = 30.0  # seconds for the user's command
KILLED_LIMIT = 5.0  # seconds to wait for the end of one that was killed
MOST_READ = 4096  # bytes of its errors
MOST = 4  # processes that py-spy reads at a time


def stacks(py_spy: str, pids: Sequence[int], until: float) -> tuple[str, ...]:
    """Return what py-spy says of each process, the first ones first; "" where the time was over.

    py-spy reads large libraries, and each process stands still meanwhile.
    """
    from concurrent.futures import ThreadPoolExecutor  # the user's command needs none

    def stack_of(pid: int) -> str:
        command = [py_spy, "dump", "--native", "--pid", str(pid)]
        left = until - time.monotonic()
        if left <= 0:
            return ""
        try:
            done = subprocess.run(
                command, capture_output=True, stdin=subprocess.DEVNULL, timeout=left
            )
        except subprocess.TimeoutExpired:
            return ""
        except OSError as e:
            return f"{py_spy}: {e.strerror}\n"
        return (done.stdout or done.stderr).decode(errors="replace")

    with ThreadPoolExecutor(MOST) as pool:
        return tuple(pool.map(stack_of, pids))


def notify(
    command: str, event: Mapping[str, Any], mask: Collection[int] = (), limit: float = LIMIT
) -> str:
    """Run the user's command with the event. Returns what was wrong; "" if nothing.

    What it prints is dropped, but for the last line of its errors if it fails. `mask`: the signals
    that are blocked for it.
    """
    me = os.getpid()

    def prepare() -> None:  # system calls only: other threads are not there after the fork
        die_with(me)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    # Files, not pipes: a command need not read, and what it leaves running holds up nobody.
    with _file(json.dumps(event).encode() + b"\n") as event_file, _file() as errors:
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=event_file,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                preexec_fn=prepare,
            )
        except OSError as e:
            return f"cannot be run: {e.strerror}"
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILLED_LIMIT)  # a file system may hold it
            return f"was killed: it took longer than {limit:g} s"
        if not code:
            return ""
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        errors.seek(max(0, os.fstat(errors.fileno()).st_size - MOST_READ))
        lines = errors.read().decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{how}: {said}" if said else how


def _file(content: bytes = b"") -> Any:
    """Return a file in memory, to be read from its begin."""
    file = os.fdopen(os.memfd_create("hpclaunch notify", os.MFD_CLOEXEC), "w+b", buffering=0)
    file.write(content)
    file.seek(0)
    return file
