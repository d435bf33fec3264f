"""The stacks of workers that hung: `round-N/evidence/rank-R.txt` in the log directories."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path

from hpclaunch.core.hangs.tracebacks import HangStacks
from hpclaunch.worker import private_files

from .log_directory import EVIDENCE, rounds

STACKS = re.compile(r"rank-(\d+)(?:\.native)?\.txt")
MOST_FILES = 8  # of a round: of the rank at fault, and of the first ranks
MOST_BYTES = 16_000  # of a file


def read(directory: Path, faulty: Collection[tuple[int, int]]) -> list[HangStacks]:
    """Return the stacks of all rounds that have readable ones. `faulty` has (round, rank) for each
    rank at fault, whose stacks come first. Raises OSError for the directory itself.
    """
    found = []
    for number, path in sorted(rounds(directory).items()):
        where = path / EVIDENCE
        try:
            matches = filter(None, map(STACKS.fullmatch, os.listdir(where)))
            ranks = sorted(((number, int(m[1])) not in faulty, int(m[1]), m[0]) for m in matches)
            names = [name for _, _, name in ranks]
            files = tuple(islice(_texts(where, names), MOST_FILES))
            if files:
                written = os.lstat(where / files[0][0]).st_mtime
                found.append(HangStacks(number, written, str(where), files))
        except OSError:
            continue
    return found


def _texts(where: Path, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the files that can be read."""
    for name in names:
        with contextlib.suppress(OSError):
            yield name, _text(where / name)


def _text(file: Path) -> str:
    with open(file, "rb", opener=private_files.open_file) as f:
        return f.read(MOST_BYTES).decode(errors="replace")
