"""Print a directory for PATH in which torchrun is hpclaunch.

    export PATH="$(hpclaunch shim):$PATH"

After this command, all programs that call torchrun start hpclaunch with
torchrun's defaults. For programs that call python -m torch.distributed.run:

    export PYTHONPATH="$(hpclaunch shim)${PYTHONPATH:+:$PYTHONPATH}"

The variable HPCLAUNCH_OPTIONS may contain options for hpclaunch, such as
--checkpoint-dir. docs/install.md says what differs from torchrun.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpclaunch.core.protocol.errors import UsageError

from . import options, write
from . import run as launch
from .parser import LaunchParser, Parser

DIRECTORY = Path(__file__).parent.parent / "shims"
TORCHRUN = "torchrun"
WORD = "--in-place-of="  # PROGRAM[:PYTHON]: the first word with which the shims call hpclaunch
OPTIONS = "HPCLAUNCH_OPTIONS"
LAUNCH = "torch.distributed.launch"


def prepare_parser(_parser: Parser) -> None:
    """Add no options."""


def run(_options: argparse.Namespace, _environ: Mapping[str, str]) -> int:
    program = DIRECTORY / TORCHRUN
    if not os.access(program, os.X_OK):
        raise UsageError(
            f"cannot be executed: {program}: install hpclaunch with pip, in a file system that is "
            "not mounted with noexec"
        )
    if os.pathsep in str(DIRECTORY):
        raise UsageError(f"{DIRECTORY} cannot be in PATH, for the {os.pathsep} in its name")
    write(f"{DIRECTORY}\n")
    return 0


def parse(words: Sequence[str], environ: Mapping[str, str], added: str) -> argparse.Namespace:
    """Return the options of a call from a shim. `added` is the user's HPCLAUNCH_OPTIONS."""
    program, _, python = words[0].removeprefix(WORD).partition(":")
    parser = _parser_of(program, environ)
    chosen = parser.parse_args([*_options_in(added, program), *words[1:]])
    if program == LAUNCH and not chosen.use_env:
        if chosen.no_python:
            raise UsageError("torch.distributed.launch takes --no-python with --use-env only")
        chosen.training_script_args.insert(0, "--local-rank=${local_rank}")
    chosen.interpreter = python or None
    return chosen


def _parser_of(program: str, environ: Mapping[str, str]) -> LaunchParser:
    parser = options.build_parser(environ, in_place_of=program)
    if program == LAUNCH:
        add, _ = parser.section("of torch.distributed.launch")
        add("--use-env", action="store_true", help="do not pass --local-rank=N to SCRIPT")
    return parser


def _options_in(text: str, program: str) -> list[str]:
    """Return the options in HPCLAUNCH_OPTIONS. Raises UsageError that names the variable."""
    if not text:
        return []
    parser = _parser_of(program, {})
    try:
        words = shlex.split(text)
        taken = parser.take_options(words)
        if words:
            raise UsageError(f"{words[0]!r} is no option")
        for word in taken:
            if parser.only_prints(word):
                raise UsageError(f"with {word} nothing would be launched")
        launch.check(parser.read(taken))
    except (UsageError, ValueError) as e:
        raise UsageError(f"{OPTIONS}={text!r}: {e}") from e
    return taken
