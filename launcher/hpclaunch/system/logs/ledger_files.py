"""The ledger's files: `ledger-AGENT-TIME.json` in the log directory, one of each agent that leads.

It is written anew now and then, and at the end; times are seconds since the epoch.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hpclaunch import __version__
from hpclaunch.core.ledger.book import Book, moved
from hpclaunch.worker import private_files

from ..shared import packing

if TYPE_CHECKING:  # agents only write
    from hpclaunch.core.ledger.job_report import JobReport
    from hpclaunch.core.ledger.summing import Launch

FORMAT = 1
FILES = re.compile(r"ledger-[\w.-]+\.json")


@dataclass(frozen=True, slots=True)
class LedgerFile:
    format: int
    version: str  # of hpclaunch
    launch: str  # the same for all agents of a launch
    allocated: float | None  # since when Slurm's job has had its nodes
    over: bool  # the agent has left in order, after this
    book: Book


def name(label: str, began: float) -> str:
    """Of the file of an agent that began at this time."""
    return f"ledger-{label}-{time.strftime('%Y%m%dT%H%M%S', time.localtime(began))}.json"


def text(book: Book, ahead: float, *, launch: str, allocated: float | None, over: bool) -> str:
    """Of a file. `ahead`: by how much the real time is ahead of the clock of the book."""
    book = moved(book, ahead)
    # JSON has no infinity: whatever was saved in 1970 comes before everything.
    entries = (
        entry if entry.resumed is None else replace(entry, resumed=max(0.0, entry.resumed))
        for entry in book.entries
    )
    book = replace(book, entries=tuple(entries))
    return packing.to_json(LedgerFile(FORMAT, __version__, launch, allocated, over, book)).decode()


def to_json(report: JobReport) -> str:
    return packing.to_json(report).decode()


def read(directory: Path) -> tuple[list[Launch], list[str]]:
    """(all launches that were written down in this directory, names of files that are none of this
    version or are damaged). Raises OSError.
    """
    found: dict[str, list[LedgerFile]] = {}
    unknown = []
    for entry in sorted(os.listdir(directory)):
        if not FILES.fullmatch(entry):
            continue
        try:
            with open(directory / entry, "rb", opener=private_files.open_file) as f:
                file = msgspec.json.decode(f.read(), type=LedgerFile)
        except (OSError, msgspec.MsgspecError):
            unknown.append(entry)
            continue
        if file.format != FORMAT or not file.book.entries:
            unknown.append(entry)
            continue
        found.setdefault(file.launch, []).append(file)
    launches = [_launch(launch, files) for launch, files in found.items()]
    return sorted(launches, key=lambda launch: launch.begin), unknown


def _launch(launch: str, files: Sequence[LedgerFile]) -> Launch:
    from hpclaunch.core.ledger.summing import Launch

    allocated = [file.allocated for file in files if file.allocated is not None]
    books = tuple(file.book for file in files)
    over = any(file.over and file.book.verdict is not None for file in files)
    return Launch(launch, books, min(allocated, default=None), over)


def date(directory: Path) -> float:
    """When the newest ledger in it was written; 0 if there is none."""
    try:
        files = [entry for entry in os.listdir(directory) if FILES.fullmatch(entry)]
        return max((os.lstat(directory / file).st_mtime for file in files), default=0.0)
    except OSError:
        return 0.0
