"""The ledger's files: `ledger-AGENT-TIME.json` in the log directory, one of each agent that leads.

It is written anew now and then, and at the end; times are seconds since the epoch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hpclaunch import __version__
from hpclaunch.core.ledger.book import LATEST, Book, is_sound, moved
from hpclaunch.core.protocol.values import replace, value
from hpclaunch.core.protocol.wording import harmless_json
from hpclaunch.worker import private_files

from ..shared import packing
from .log_directory import LEDGERS

if TYPE_CHECKING:  # agents only write
    from hpclaunch.core.ledger.job_report import JobReport
    from hpclaunch.core.ledger.summing import Launch

FORMAT = 2


@value(frozen=True)
class LedgerFile:
    format: int
    version: str  # of hpclaunch
    launch: str  # the same for all agents of a launch
    allocated: float | None  # since when Slurm's job has had its nodes
    over: bool  # the agent has left in order, after this
    book: Book


def text(book: Book, *, launch: str, allocated: float | None, over: bool) -> str:
    """Return the content of a file with a book `in_real_time`."""
    return packing.pack(LedgerFile(FORMAT, __version__, launch, allocated, over, book)).decode()


def in_real_time(book: Book, ahead: float) -> Book:
    """As it can be written down. `ahead`: by how much the real time is ahead of its clock."""
    book = moved(book, ahead)
    # JSON has no infinity: whatever was saved in 1970 comes before everything.
    entries = (
        entry if entry.resumed is None else replace(entry, resumed=max(0.0, entry.resumed))
        for entry in book.entries
    )
    return replace(book, entries=tuple(entries))


def to_json(report: JobReport) -> str:
    return harmless_json(packing.to_json(report).decode())


def read(directory: Path) -> tuple[list[Launch], list[str]]:
    """(all launches that were written down in this directory, names of files that are none of this
    version or are damaged). Raises OSError.
    """
    found: dict[str, list[LedgerFile]] = {}
    unknown = []
    for path in LEDGERS.in_directory(directory):
        try:
            file = packing.unpack(private_files.read_file(path), LedgerFile)
        except (OSError, msgspec.MsgspecError):
            unknown.append(path.name)
            continue
        if file.format != FORMAT or not (
            is_sound(file.book) and 0 <= (file.allocated or 0) < LATEST
        ):
            unknown.append(path.name)
            continue
        found.setdefault(file.launch, []).append(file)
    launches = [_launch(launch, files) for launch, files in found.items()]
    return sorted(launches, key=lambda launch: launch.begin), unknown


def ended(launch: str, book: Book, allocated: float | None) -> Launch:
    """Return a launch with the book of a single agent, which leaves in order."""
    return _launch(launch, [LedgerFile(FORMAT, __version__, launch, allocated, True, book)])


def _launch(launch: str, files: Sequence[LedgerFile]) -> Launch:
    from hpclaunch.core.ledger.summing import Launch

    allocated = [file.allocated for file in files if file.allocated is not None]
    found = Launch(launch, tuple(file.book for file in files), min(allocated, default=None))
    # A head that was cut off may have come to an end, while another one led the others.
    over = any(file.over and file.book is found.newest for file in files)
    return replace(found, over=over and found.newest.verdict is not None)


def date(directory: Path) -> float:
    """When the newest ledger in it was written; 0 if there is none."""
    try:
        files = LEDGERS.in_directory(directory)
        return max((os.lstat(file).st_mtime for file in files), default=0.0)
    except OSError:
        return 0.0
