"""The command that starts a worker, from the words of the command line."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.values import value

from . import COMMANDS, other_launchers

# This does the same as torchrun's run_script_path, in a new interpreter.
RUN_PATH = (
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
# The interpreter of a Python script: a path, or a name that `env` looks up in PATH. If the path has
# a space, or is too long for a first line, pip and uv write it into the second one.
SHEBANG = re.compile(
    r"""#!(?:/bin/sh\n'''exec' (?:"([^"\n]+)"|'([^'\n]+)'|(\S+))"""
    r"""|[ \t]*(?:\S*/env[ \t]+(?:-S[ \t]+)?)?(\S+))"""
)
# The first line of a shell script: sh, bash and others, by path or through env.
SHELL = re.compile(rb"#!\s*(\S*/env\s+(-\S+\s+)*)?(\S*/)?(ba|da|k|z|c|tc|fi)?sh\b")
SHEBANG_BYTES = 256  # the kernel reads only this much of a first line


@value(frozen=True)
class Program:
    command: tuple[str, ...]
    python: str  # the interpreter whose torch the workers use
    note: str = ""
    cold: str = ""  # why the template cannot fork the workers; "": it can
    on_stdin: bool = False  # the workers read the script from standard input


def is_on_stdin(options: argparse.Namespace) -> bool:
    """Return whether the script comes from standard input, as with `python -`."""
    if options.module or options.no_python or options.run_path:
        return False
    script, args = options.training_script, tuple(options.training_script_args)
    return script == "-" or (_is_python(script) and _after_python(args)[:1] == ("-",))


def program(options: argparse.Namespace, environ: Mapping[str, str]) -> Program:
    """Return the workers' program. Raises UsageError if it cannot be started on this host."""
    script, args = options.training_script, tuple(options.training_script_args)
    python = _interpreter(options, environ)
    if options.module and options.no_python:
        raise UsageError("--no-python and -m contradict each other: a module needs Python")
    cold = _why_cold(python)
    if options.run_path:  # comes before --no-python, as in torchrun
        _check_script(script)
        return Program((python, "-u", "-c", RUN_PATH, script, *args), python, cold=cold)
    if options.no_python:
        _check_program(script)
        return Program((script, *args), python)
    if options.module:
        _check_module(script)
        return Program((python, "-u", "-m", script, *args), python, cold=cold)
    if on_stdin := is_on_stdin(options):
        _check_standard_input()
    if _is_python(script):
        return _without_python(script, args, which(script) or python, on_stdin)
    if not on_stdin:
        _check_script(script)
    return Program((python, "-u", script, *args), python, cold=cold, on_stdin=on_stdin)


def _interpreter(options: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """Return the workers' interpreter: the one that PYTHON_EXEC names, as for torchrun.

    A launcher in place of torchrun takes torchrun's own, since the user's torch may be in another
    installation than hpclaunch.
    """
    if python := environ.get("PYTHON_EXEC"):
        if _which(python) is None:
            raise UsageError(f"PYTHON_EXEC={python} is not a program that can be started")
        return python
    if options.in_place_of == "torchrun" and not options.interpreter:
        return _interpreter_of(which("torchrun")) or sys.executable
    return options.interpreter or sys.executable


def torchrun_of_unknown_python(options: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """Return the torchrun in whose place this launcher is, if its interpreter is not known, as that
    of a shell script; "" otherwise.
    """
    if options.in_place_of != "torchrun" or options.interpreter or environ.get("PYTHON_EXEC"):
        return ""
    torchrun = which("torchrun")
    return "" if torchrun is None or _interpreter_of(torchrun) else torchrun


def _interpreter_of(path: str | None) -> str:
    """Return the Python interpreter of a script, or "" if there is none."""
    if path is None:
        return ""
    try:
        with open(path, "rb") as f:
            head = os.fsdecode(f.read(4096))
    except OSError:
        return ""
    found = SHEBANG.match(head)
    python = found[found.lastindex or 0] if found else ""
    named = os.path.basename(python).startswith("python")
    return (which(python) or "") if named else ""


def which(name: str) -> str | None:
    """Return the path of a program as shutil.which does, without those of `hpclaunch shim`."""
    path = [
        directory
        for directory in os.get_exec_path()
        if not os.path.realpath(directory).endswith("/hpclaunch/shims")
    ]
    return _which(name, os.pathsep.join(path))


def _which(name: str, path: str | None = None) -> str | None:
    import shutil  # slow to import, and most launches do not need it

    return shutil.which(name, path=path)


def _why_cold(python: str) -> str:
    """Return why workers of this interpreter cannot be forked from one of hpclaunch's, or ""."""
    path = os.path.abspath(which(python) or python)  # an empty entry in PATH gives a bare name
    same = os.path.samefile(path, sys.executable) and os.path.samefile(
        os.path.dirname(path), os.path.dirname(sys.executable)
    )
    return "" if same else f"{python} is another interpreter than hpclaunch's, {sys.executable}"


def _is_python(script: str) -> bool:
    """Return whether this is an interpreter in the script's place: `hpclaunch python train.py`.

    It need not exist: users write it out of habit, and Debian has no `python`.
    """
    if not re.fullmatch(r"python(\d(\.\d+)?)?", os.path.basename(script)):
        return False
    return _which(script) is not None or not os.path.exists(script)


def _after_python(args: tuple[str, ...]) -> tuple[str, ...]:
    return args[1:] if args[:1] == ("-u",) else args  # workers are started with -u anyway


def _without_python(said: str, args: tuple[str, ...], python: str, on_stdin: bool) -> Program:
    rest = _after_python(args)
    if not rest:
        raise UsageError(f"no script after {said}")
    if rest[0] == "-m" and len(rest) > 1:
        _check_module(rest[1])
    elif not rest[0].startswith("-"):
        _check_script(rest[0])
    return Program((python, "-u", *rest), python, said, _why_cold(python), on_stdin)


def _check_standard_input() -> None:
    """Raise UsageError if standard input has no script. Call `standard_input.keep` before."""
    if os.isatty(0):
        raise UsageError("- is a script on standard input, which is a terminal: redirect a file")
    if not os.fstat(0).st_size:
        raise UsageError("- is a script on standard input, which is empty")


def _check_module(module: str) -> None:
    if any(f"{module}.".startswith(f"{known}.") for known in other_launchers.MODULES):
        raise UsageError(f"hpclaunch takes the place of {module}: leave that out")
    if module.endswith(".py") and os.path.exists(module):
        raise UsageError(
            f"-m takes the name of a module, not a file: leave -m out, or -m {module[:-3]}"
        )


def _check_program(name: str) -> None:
    if _which(name) is not None:
        return
    if not os.path.exists(name):
        raise UsageError(f"no program {name} in {os.getcwd()} or in PATH")
    if os.path.isdir(name):
        raise UsageError(f"{name} is a directory, not a program")
    if not os.access(name, os.X_OK):
        raise UsageError(f"{name} may not be executed: chmod +x {name}")
    raise UsageError(f"{name} is not in PATH: write ./{name}")


def _commands(word: str) -> str:
    """Return the end of the error for a word that is no script but may be meant as a command."""
    if word in COMMANDS:
        return f"; the command {word} comes first: hpclaunch {word}"
    if not re.fullmatch(r"[a-z-]+", word, re.IGNORECASE):
        return ""
    return f", and no such command: the commands are {', '.join(COMMANDS)}"


def _check_script(script: str) -> None:
    there = os.path.exists(script)
    directory, name = os.path.split(script)
    if not there or os.path.basename(directory) == "bin":
        if said := other_launchers.PROGRAMS.get(name):
            raise UsageError(f"hpclaunch takes the place of {said}: leave that out")
        if said := other_launchers.STARTERS.get(name):
            raise UsageError(said)
    if not there:
        if name == "srun":
            raise UsageError("write srun before hpclaunch, not after it")
        if _which(script) is not None:
            raise UsageError(
                f"no script {script} in {os.getcwd()}; for the program {script}, add --no-python"
            )
        raise UsageError(f"no script {script} in {os.getcwd()}{_commands(script)}")
    if os.path.isdir(script):
        if not os.path.exists(os.path.join(script, "__main__.py")):
            raise UsageError(f"{script} is a directory, not a script")
        return
    if not os.access(script, os.R_OK):
        raise UsageError(f"cannot read the script {script}: permission denied")
    if not os.path.isfile(script):
        return  # a pipe, as of <(...), which can be read only once
    if _is_program(script):
        raise UsageError(f"{script} is not a Python script: add --no-python to run it as a program")


def _is_program(file: str) -> bool:
    """Return whether a file is a program or a shell script, but not also a Python script.

    Some files are both: scripts of installers, where the interpreter's path is too long for a first
    line, and archives of PEX.
    """
    with open(file, "rb") as f:
        start = f.readline(SHEBANG_BYTES)
        if not SHELL.match(start):
            return start.startswith(b"\x7fELF")
        text = start + f.read()
    import warnings
    import zipfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns when it runs the script
            compile(text, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return not zipfile.is_zipfile(file)
    return False
