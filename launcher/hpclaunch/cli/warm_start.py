"""Decides whether workers start warm: forked from a process that has imported torch."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Mapping
from typing import NamedTuple

from hpclaunch.agent.config import Start
from hpclaunch.core.protocol.wording import changed_too_early

from .program import Program

AUTO, NONE = "auto", "none"


def start(
    options: argparse.Namespace, what: Program, environ: Mapping[str, str], *, head: bool
) -> tuple[Start, str]:
    """Return how to start workers, and why they start cold if the user may not expect that."""
    if options.no_python:  # the program may use torch in any language
        return Start(warm=False, ahead=head), ""
    look = look_at(what, environ)
    if options.cold or not look.may_have_torch:
        return Start(warm=False, ahead=head and look.may_have_torch), ""
    if look.cold:
        return Start(warm=False, ahead=head), look.cold
    modules = tuple(name for name in options.preload if name not in (AUTO, NONE))
    if NONE in options.preload:
        return Start(True, ahead=True, modules=modules), ""
    from hpclaunch.system.shared import program_text

    steps = () if look.tree is None else program_text.installed_imports(look.tree)
    return Start(True, ahead=True, modules=modules, learn=True, steps=steps), ""


class Look(NamedTuple):
    """The findings in the text of a program."""

    may_have_torch: bool
    cold: str = ""  # why it must start cold; "" if it need not
    tree: ast.Module | None = None  # of a program that may import torch, if it could be parsed


def look_at(what: Program, environ: Mapping[str, str]) -> Look:
    """Find out from a program's text whether it may use torch, and whether it must start cold.

    Unless the text shows that it must start cold, it starts warm, and each worker checks again.
    """
    from hpclaunch.core.source import first_imports, interpreter_call
    from hpclaunch.system.shared import program_text

    call = interpreter_call.parse(what.command[1:])
    if not (call.runs and program_text.has_torch()):
        return Look(False)
    cold = what.cold or interpreter_call.why_cold(call, environ)
    name = "standard input" if call.program == "-" else call.program
    try:
        text = program_text.read(call)
    except program_text.ReadOnceError:
        return Look(True, cold or f"{name} can be read only once")
    if text is None:
        return Look(False)  # Python will report that it does not exist
    tree = program_text.parse(text)
    if tree is None:
        # The program is an archive or compiled, or has an error that Python will report.
        return Look(b"\0" in text or len(text) == program_text.MOST_BYTES, cold)
    if first_imports.is_plain(tree, sys.stdlib_module_names):
        return Look(False)
    change = program_text.first_change(tree, environ)
    if change is not None and not cold:
        file = "the code after -c" if call.kind == "c" else name
        cold = changed_too_early(file, *change)
    return Look(True, cold, tree)
