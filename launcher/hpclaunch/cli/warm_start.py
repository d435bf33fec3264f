"""Warm start: whether the workers can be forked from a process that has imported torch."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from hpclaunch.agent.config import Start

from .program import Program

AUTO = "auto"


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
    modules = tuple(name for name in options.preload if name != AUTO)
    return Start(True, ahead=True, modules=modules, learn=AUTO in options.preload), ""
