"""Shell completion of the options, the script, and every command with its own options.

shtab generates it from the parsers. shtab cannot express that a script may stand in the place of a
command, so this is added here.
"""

from __future__ import annotations

import argparse
import importlib

import shtab

from . import COMMANDS
from .parser import Parser

PROGRAM = "hpclaunch"
# By shell: a line of shtab's script, or "" for its end, and what to insert after it.
_FILES = {
    "bash": ("", "_shtab_hpclaunch_pos_0_COMPGEN=_shtab_compgen_files"),
    "zsh": ("  _describe 'hpclaunch commands' _commands\n", "  _files\n"),
    "fish": (
        "",
        "complete -c hpclaunch -n '_shtab_hpclaunch_using; and test $_shtab_hpclaunch_npos -eq 0' "
        "-ka '(__fish_complete_path (commandline -ct))' -d script",
    ),
}


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the completion script for this shell. `parser` has the options of a launch."""
    if parser.prog != PROGRAM or shell not in _FILES:  # torchrun has no commands
        name = parser.add_argument("script", help="the training script")
        name.complete = shtab.FILE  # type: ignore[attr-defined]
        _complete_paths(parser)
        return str(shtab.complete(parser, shell=shell))
    _add_commands(parser)
    _complete_paths(parser)
    text: str = shtab.complete(parser, shell=shell)
    line, files = _FILES[shell]
    return text.replace(line, line + files) if line else f"{text}\n{files}\n"


def _add_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(prog=PROGRAM, parser_class=Parser, required=False)
    for name in COMMANDS:
        module = importlib.import_module(f"{__package__}.{name}")
        first = (module.__doc__ or "").splitlines()[0]
        command = commands.add_parser(name, help=first, description=first)
        module.prepare_parser(command)
        _complete_paths(command)


def _complete_paths(parser: argparse.ArgumentParser) -> None:
    """Complete paths for values whose name is FILE, SCRIPT or DIR."""
    for action in parser._actions:
        kinds = str(action.metavar).split("|")
        if "FILE" in kinds or "SCRIPT" in kinds:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif "DIR" in kinds:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
