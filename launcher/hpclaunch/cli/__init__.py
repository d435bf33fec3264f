"""The command line: one module per command, each with `prepare_parser` and `run`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from hpclaunch import __version__
from hpclaunch.core.errors import UsageError
from hpclaunch.core.model import EXIT_USAGE

from . import run


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def main(args: Sequence[str] | None = None) -> int:
    """Returns the exit code; a user's mistake is one line on standard error and 2."""
    parser = _Parser(
        prog="hpclaunch",
        description=run.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hpclaunch {__version__}")
    run.prepare_parser(parser)
    try:
        options = parser.parse_args(args)
        run.check(options)
    except UsageError as e:
        # Every task of a step was given the same words: one of them says what is wrong with them.
        return _complain(e) if os.environ.get("SLURM_PROCID", "0") == "0" else EXIT_USAGE
    try:
        return run.run(options, os.environ)
    except UsageError as e:
        return _complain(e)


def _complain(error: UsageError) -> int:
    print(f"hpclaunch: error: {error}", file=sys.stderr)
    return EXIT_USAGE
