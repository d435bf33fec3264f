"""The command line: one module per command, each with `prepare_parser` and `run`.

As with torchrun, launching has no command: its options are in `options.py`, and `run.py` does it.
This module imports no library, since `main` first changes where libraries are found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TextIO

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.wording import for_console

# Each is the module of that name.
COMMANDS = (
    *("checkpoints", "doctor", "logs", "notice", "replay", "report", "restart", "sbatch", "shim"),
    *("stacks", "status", "stop", "top"),
)
MANY = 1000  # pieces to write at once


class NobodyReadsError(Exception):
    """Standard output was closed, by `head` or a pager."""


def main(args: Sequence[str] | None = None) -> int:
    """Run a command. Return its exit code, 2 after a usage error."""
    fill_standard_descriptors()
    look_for_libraries_first()
    try:
        with _interrupts_end_at_once():
            from .command_line import run_words

        return run_words(sys.argv[1:] if args is None else args)
    except NobodyReadsError:
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


@contextlib.contextmanager
def _interrupts_end_at_once() -> Iterator[None]:
    """Let SIGINT end this process, unless it is ignored or the caller handles it. Nothing has been
    started yet, and a KeyboardInterrupt within an import may crash an extension module.
    """
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if is_usual:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    except ValueError:  # in another thread, which gets no KeyboardInterrupt
        is_usual = False
    try:
        yield
    finally:
        if is_usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def fill_standard_descriptors() -> None:
    """Open /dev/null as whichever of 0, 1 and 2 is closed (`hpclaunch ... >&-`).

    Otherwise the next file or socket would get that number. Python's own sys.stdout stays None.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(null, True)


def look_for_libraries_first() -> None:
    """Move the user's directories to the end of sys.path, so that no zmq.py there is imported."""
    theirs = {"", *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    with contextlib.suppress(OSError):  # the directory may be gone
        theirs.add(os.getcwd())
    sys.path.sort(key=lambda entry: entry in theirs)  # stable: nothing else changes


def say(text: str) -> None:
    """Write a message to standard error, which may be closed."""
    if sys.stderr is not None:
        sys.stderr.flush()
        sys.stderr.buffer.write(for_console(f"hpclaunch: {text}\n"))
        sys.stderr.buffer.flush()


def standard_output() -> TextIO:
    """Return standard output. Raises UsageError if it is closed."""
    if sys.stdout is None:
        raise UsageError("standard output is closed")
    return sys.stdout


def write(text: str) -> None:
    """Write a text as `write_bytes` does. Undecodable bytes in names of files are escaped."""
    write_bytes([text.encode(standard_output().encoding, "backslashreplace")])


def write_bytes(pieces: Iterable[bytes]) -> None:
    """Write to standard output, many pieces at once. Raises NobodyReadsError, and UsageError for
    other failures.
    """
    fd, rest = standard_output().fileno(), iter(pieces)
    while some := list(islice(rest, MANY)):
        data = memoryview(b"".join(some))
        try:
            while data:
                data = data[os.write(fd, data) :]
        except BrokenPipeError as e:
            raise NobodyReadsError from e
        except OSError as e:
            raise UsageError(f"cannot write to standard output: {e.strerror}") from e
