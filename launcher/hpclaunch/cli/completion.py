"""Completion of the command line by a shell, for `--print-completion`: shtab derives it from the
parser, as torchrun does.
"""

from __future__ import annotations

import argparse
from typing import Any

SHELLS = ("bash", "zsh", "tcsh", "fish")


class PrintCompletion(argparse.Action):
    """Prints the shell's script and exits."""

    def __call__(
        self, parser: argparse.ArgumentParser, _space: Any, shell: Any, _spelling: Any = None
    ) -> None:
        import shtab  # nobody else pays for it

        script = parser.add_argument("script", help=argparse.SUPPRESS)
        script.complete = shtab.FILE  # type: ignore[attr-defined]
        print(shtab.complete(parser, shell=shell))
        parser.exit()
