"""Runs the command or the launch that the words of a command line name."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence

from hpclaunch.core.placement import worker_environment
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import EXIT_FAILED, EXIT_USAGE
from hpclaunch.system.shared.step_membership import forget_other_step

from . import COMMANDS, options, run, say, shim
from .parser import Parser


def run_words(args: Sequence[str]) -> int:
    """Run a command, and return its exit code: 2 after a usage error, which is printed."""
    words = list(args)
    forget_other_step(os.environ)
    # A script with the name of a command comes first, since it may be older than the command.
    if words and words[0] in COMMANDS and not _is_script(words[0]):
        return _command(words[0], words[1:])
    added = os.environ.pop(shim.OPTIONS, "")  # not for launches by this launch's workers
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


def _speaks(environ: Mapping[str, str]) -> bool:
    """Return whether this launcher prints usage errors. Of the tasks of a step, the first and the
    last do: the first may run another program. A launcher that a worker has started always does.
    """
    task, tasks = environ.get("SLURM_PROCID", "0"), environ.get("SLURM_STEP_NUM_TASKS", "")
    is_last = tasks.isdecimal() and task == str(int(tasks) - 1)
    return task == "0" or is_last or worker_environment.is_within(environ)


def _is_script(name: str) -> bool:
    """Return whether there is a script of this name that belongs to this user or to root. Anybody
    else who may write to the working directory must not be able to replace a command.
    """
    program = os.path.join(name, "__main__.py") if os.path.isdir(name) else name
    try:
        found = (os.lstat(name), os.stat(name), os.stat(program))
    except OSError:
        return False
    own = all(each.st_uid in (0, os.geteuid()) for each in found)
    return own and os.path.isfile(program)


def _command(name: str, words: list[str]) -> int:
    try:
        module = importlib.import_module(f"{__package__}.{name}")
        kind: type[Parser] = getattr(module, "PARSER", Parser)
        parser = kind(prog=f"hpclaunch {name}", description=module.__doc__)
        module.prepare_parser(parser)
        code: int = module.run(parser.parse_args(words), os.environ)
        return code
    except UsageError as e:
        return _complain(e)


def _complain(error: UsageError) -> int:
    say(f"error: {error}")
    return EXIT_USAGE
