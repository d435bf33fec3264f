"""The log directories of launches that are long over, and their removal.

Only files that a launch makes are removed, by their names, and directories that are empty then: a
user may keep other things beside them. A run that somebody uses stays as it is: one that still
runs, or that another process of this user reads on this host.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpclaunch.worker import private_files

from .log_directory import (
    EVIDENCE,
    FIRST,
    HISTORIES,
    INDEXES,
    JOB,
    LEDGERS,
    LOCK,
    STATUS,
    is_locked,
    rounds,
)
from .volume import open_files

JOURNALS = re.compile(r"journal(-agent-[\w.-]+)?\.jsonl\S*")
OTHERS = (FIRST, LOCK)
OURS = re.compile(
    r"rank-\d+\.(out|err)(\.\d+)?|rank-\d+\.error\.json|filtered-agent-\S+|store\.err(\.\d+)?"
    rf"|(?:{LEDGERS.pattern}|{re.escape(STATUS)}|report\.json)(\.new)?|{HISTORIES.pattern}"
    rf"|{INDEXES.pattern}|{JOB.format('[0-9]+')}"
)
OF_HANGS = re.compile(r"rank-\d+(\.native\.txt|\.collectives\.json|\.txt)(\.new)?")


@dataclass(frozen=True, slots=True)
class Run:
    path: Path
    files: tuple[Path, ...]
    size: int  # bytes on the disk
    changed: float  # seconds since the epoch; the newest of its files


def runs(directory: Path, before: float) -> Iterator[Run | None]:
    """Those in `directory` in which nothing has changed since `before`, seconds since the epoch;
    None for each of the others. Raises OSError.
    """
    with os.scandir(directory) as entries:
        paths = sorted(Path(e.path) for e in entries if e.is_dir(follow_symlinks=False))
    for path in paths:
        with contextlib.suppress(OSError):  # it is gone by now, or another user's
            names = os.listdir(path)
            journals = [path / name for name in names if JOURNALS.fullmatch(name)]
            if not journals:
                continue
            private_files.check_directory(path)
            newest = max(os.lstat(journal).st_mtime for journal in journals)
            yield _run(path, names, before) if newest < before else None


def _run(path: Path, names: list[str], before: float) -> Run | None:
    files = []
    for of_round in rounds(path).values():
        files += [*_ours(of_round, OURS), *_ours(of_round / EVIDENCE, OF_HANGS)]
    files += [path / name for name in names if OURS.fullmatch(name)]
    files += [path / name for name in names if JOURNALS.fullmatch(name) or name in OTHERS]
    found = [os.lstat(file) for file in files]
    changed = max(each.st_mtime for each in found)
    if changed >= before:
        return None
    return Run(path, tuple(files), sum(each.st_blocks * 512 for each in found), changed)


def _ours(directory: Path, names: re.Pattern[str]) -> list[Path]:
    try:
        if _is_of_run(directory):
            return [directory / name for name in os.listdir(directory) if names.fullmatch(name)]
    except FileNotFoundError:
        pass
    return []


def _is_of_run(directory: Path) -> bool:
    """Return whether neither this directory nor the one above it, which may be a round's, is a
    link. Raises OSError.
    """
    return all(stat.S_ISDIR(os.lstat(each).st_mode) for each in (directory, directory.parent))


class Removal:
    """Removes runs; `used` are the files that somebody has open."""

    def __init__(self) -> None:
        self._used = open_files()

    def is_used(self, run: Run) -> bool:
        above = os.path.realpath(run.path.parent)
        names = (os.path.join(above, file.relative_to(run.path.parent)) for file in run.files)
        return not self._used.isdisjoint(names) or is_locked(run.path)

    def remove(self, run: Run) -> None:
        """Raises OSError. By its journals one is found again: they are the last."""
        journals = [file for file in run.files if JOURNALS.fullmatch(file.name)]
        for file in run.files:
            if file not in journals:
                file.unlink(missing_ok=True)
        for directory in (*run.path.glob(f"round-*/{EVIDENCE}"), *run.path.glob("round-*")):
            _remove_empty(directory)
        for journal in journals:
            journal.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something else is there
            run.path.rmdir()  # DIR itself may be a link


def _remove_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):  # something else is there
        if _is_of_run(directory):
            directory.rmdir()
