"""The log directory: every worker's output in files of its own.

    DIR/round-0/rank-3.out    .err    .error.json

Workers write to their files themselves: a dead agent loses no line, and a stalled console stops no
worker.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from hpclaunch.core.protocol.errors import UsageError

TAIL_BYTES = 4096
TAIL_LINES = 12
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # and whatever else a terminal is told so


class LogDirectory:
    """Created private to the user; files in it are appended to, never overwritten."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            # A directory that exists keeps its mode; what we put into it is private.
            (self.path / "round-0").mkdir(exist_ok=True, mode=0o700)
            usable = os.access(self.path, os.R_OK | os.W_OK | os.X_OK)
        except OSError as e:
            raise UsageError(f"cannot write to the log directory {path}: {e.strerror}") from e
        if not usable:
            raise UsageError(f"cannot write to the log directory {path}: permission denied")

    def round(self, number: int) -> Path:
        directory = self.path / f"round-{number}"
        directory.mkdir(exist_ok=True, mode=0o700)
        return directory


def size(path: Path) -> int:
    """In bytes; 0 for a file that does not exist yet."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def tail(begins: Mapping[Path, int]) -> str:
    """The last lines of the first file that has any, without colours: what a worker wrote before it
    ended.

    `begins` has the sizes of the files at the start of the round: what is before, an earlier launch
    has written.
    """
    for path, begin in begins.items():
        try:
            with path.open("rb") as f:
                f.seek(0, os.SEEK_END)
                f.seek(max(begin, f.tell() - TAIL_BYTES))
                text = _COLOURS.sub("", f.read().decode(errors="replace")).strip("\n")
        except OSError:
            continue
        if text:
            return "\n".join(text.splitlines()[-TAIL_LINES:])
    return ""
