"""The common part of stop, restart and notice, which request something of a running job."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import Request

from . import write
from .parser import Parser


def prepare_parser(parser: Parser) -> None:
    parser.add_argument("job", metavar="JOB", help="Slurm's id of a job, or the name of a launch")


def command(request: Request) -> Callable[[argparse.Namespace, Mapping[str, str]], int]:
    """Return the `run` of the command that makes this request."""

    def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
        from hpclaunch.system.network import launches

        try:
            found = launches.find(options.job, environ)
            name = found.only.name
            answers = found.request(request)
        except launches.NoLaunchError as e:
            raise UsageError(str(e)) from e
        if not answers:
            raise UsageError(f"{name} does not answer: hpclaunch status {options.job} shows more")
        if answers[0]:
            raise UsageError(f"{name}: {answers[0]}")
        write(f"{name}: {request.value} asked for\n")
        return 0

    return run
