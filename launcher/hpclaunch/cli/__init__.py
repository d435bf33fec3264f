"""The command line: one module per command, each with `prepare_parser` and `run`.

Launching is the default and has no command of its own, as with torchrun: its options are in
`options.py`, and `run.py` does it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TextIO

from hpclaunch.core.placement import worker_environment
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import EXIT_FAILED, EXIT_USAGE
from hpclaunch.core.protocol.wording import for_console
from hpclaunch.system.shared.step_membership import forget_other_step

from . import options, run, shim
from .parser import Parser

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
    forget_other_step(os.environ)
    words = list(sys.argv[1:] if args is None else args)
    # A script of that name comes first: it may have been called like this for years.
    if words and words[0] in COMMANDS and not _is_script(words[0]):
        return _command(words[0], words[1:])
    added = os.environ.pop(shim.OPTIONS, "")  # for this launch, not for launches by workers
    try:
        if words and words[0].startswith(shim.WORD):
            chosen = shim.parse(words, os.environ, added)
        else:
            chosen = options.build_parser(os.environ).parse_args(words)
        run.check(chosen)
    except UsageError as e:
        return _complain(e) if _speaks(os.environ) else EXIT_USAGE
    try:
        return run.run(chosen, os.environ)
    except UsageError as e:
        code = _complain(e)
        return EXIT_FAILED if chosen.in_place_of else code
    except KeyboardInterrupt:  # Ctrl-C before the agent handles signals
        return 128 + signal.SIGINT


def _speaks(environ: Mapping[str, str]) -> bool:
    """Return whether this task of a step prints usage errors: the first one does, and the last one,
    since the first may run another program.
    """
    task, tasks = environ.get("SLURM_PROCID", "0"), environ.get("SLURM_STEP_NUM_TASKS", "")
    is_last = tasks.isdecimal() and task == str(int(tasks) - 1)
    return task == "0" or is_last or worker_environment.is_within(environ)


def _is_script(name: str) -> bool:
    """Return whether there is a script of this name that belongs to this user or to root: whoever
    may write in the working directory can name one after a command.
    """
    program = os.path.join(name, "__main__.py") if os.path.isdir(name) else name
    try:
        found = (os.lstat(name), os.stat(name), os.stat(program))
    except OSError:
        return False
    own = all(each.st_uid in (0, os.geteuid()) for each in found)
    return own and os.path.isfile(program)


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


def _command(name: str, words: list[str]) -> int:
    try:
        module = importlib.import_module(f"{__name__}.{COMMANDS[name]}")
        kind: type[Parser] = getattr(module, "PARSER", Parser)
        parser = kind(prog=f"hpclaunch {name}", description=module.__doc__)
        module.prepare_parser(parser)
        code: int = module.run(parser.parse_args(words), os.environ)
        return code
    except UsageError as e:
        return _complain(e)
    except NobodyReadsError:
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _complain(error: UsageError) -> int:
    say(f"error: {error}")
    return EXIT_USAGE


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
