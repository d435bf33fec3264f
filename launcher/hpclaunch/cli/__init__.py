"""The command line: one module per command, each with `prepare_parser` and `run`.

Launching is the default and has no command of its own, as with torchrun: its options are in
`options.py`, and `run.py` does it. Nothing here imports a library: first `main` has its own found.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TextIO

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.wording import for_console

# Each with its module.
COMMANDS = {
    "checkpoints": "checkpoints",
    "doctor": "doctor",
    "logs": "logs",
    "notice": "give_notice",  # hpclaunch.notice is for scripts
    "replay": "replay",
    "report": "report",
    "restart": "restart",
    "sbatch": "sbatch",
    "shim": "shim",
    "stacks": "stacks",
    "status": "status",
    "stop": "stop",
    "top": "top",
}

MANY = 1000  # pieces that are written at once


class NobodyReadsError(Exception):
    """What a command prints: it was for `head`, or for a pager that was left."""


def main(args: Sequence[str] | None = None) -> int:
    """Returns the exit code; a user's mistake is one line on standard error and 2."""
    fill_standard_descriptors()
    look_for_libraries_first()
    from .command_line import run_words

    return run_words(sys.argv[1:] if args is None else args)


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
    """The user's own directories are for the workers: the agent must not import a zmq.py there."""
    theirs = {"", *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    with contextlib.suppress(OSError):  # it may be gone
        theirs.add(os.getcwd())
    sys.path.sort(key=lambda entry: entry in theirs)  # stable: nothing else changes


def say(text: str) -> None:
    """Write a message to standard error, which may be closed."""
    if sys.stderr is not None:
        sys.stderr.flush()
        sys.stderr.buffer.write(for_console(f"hpclaunch: {text}\n"))
        sys.stderr.buffer.flush()


def standard_output() -> TextIO:
    """Standard output. Raises UsageError if there is none."""
    if sys.stdout is None:
        raise UsageError("standard output is closed")
    return sys.stdout


def write(text: str) -> None:
    """`write_bytes` for a text, in which names of files may have any bytes."""
    write_bytes([text.encode(standard_output().encoding, "backslashreplace")])


def write_bytes(pieces: Iterable[bytes]) -> None:
    """Write what a command prints to standard output, many pieces at once. Raises UsageError if
    that cannot be, and NobodyReadsError.
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
