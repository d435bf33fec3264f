"""Warm start: whether the workers can be forked from a process that has imported torch."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from hpclaunch.agent.config import Start

from .program import Program

AUTO, NONE = "auto", "none"


def start(
    options: argparse.Namespace, what: Program, environ: Mapping[str, str], *, head: bool
) -> tuple[Start, str]:
    """How to start the workers, and a line for a user who may have expected a warm start."""
    from hpclaunch.system.source_files import survey

    if options.no_python:  # it may well use torch, in whatever language
        return Start(warm=False, ahead=head), ""
    found = survey(what.command, environ)
    if options.cold or not found.torch:
        return Start(warm=False, ahead=head and found.torch), ""
    cold = what.cold or found.cold
    if cold:
        return Start(warm=False, ahead=head), f"cold start: {cold}"
    modules = tuple(name for name in options.preload if name not in (AUTO, NONE))
    if NONE in options.preload:
        return Start(True, ahead=True, modules=modules), ""
    from hpclaunch.system import lessons

    lesson, file = lessons.of_command(what.command, environ)
    memory = str(file) if file is not None and head else ""
    warm = Start(True, ahead=True, modules=modules, learn=True, lesson=lesson, memory=memory)
    return warm, ""
