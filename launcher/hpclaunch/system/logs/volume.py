"""--log-limit: the files of one agent's workers, those of all rounds together, stay below a limit.

What is oldest goes first: files of rounds that are over, and segments. A worker keeps its file
open, so a file that has grown long is copied to a segment and emptied, as logrotate does with
`copytruncate`: rank-3.out.0001 is its oldest part, then .0002, and rank-3.out the newest. Lines
that are written within the microseconds between the last copy and the emptying are lost.

What another process of this user has open on this host stays until it is closed.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hpclaunch.worker import private_files

from .log_directory import size

LOOKS = 1.0  # seconds between two
LONGEST = 64 << 20  # bytes of a segment: nothing else is done while one is copied
SHORTEST = 4096
LAST = 1 << 20  # bytes at the end of a file that are kept, however quickly it grows


@dataclass(frozen=True, slots=True)
class Cut:
    """A file was emptied. What it had from the byte `begin` on is in the segment now; without one,
    for which the disk had no room, that is nothing. `lost` bytes are in neither: they were written
    faster than they could be copied.
    """

    file: Path
    begin: int
    segment: Path | None
    number: int  # of the segment
    lost: int = 0

    @property
    def end(self) -> int:
        """How many bytes the file had."""
        return self.begin + self.lost + (0 if self.segment is None else size(self.segment))


class Volume:
    """Which files there are, from the oldest to those that are written now."""

    def __init__(self) -> None:
        self._limit = 0  # bytes; 0: none
        self._over: deque[Path] = deque()  # nobody writes to them any more
        self._written: list[Path] = []
        self._uncut: list[Path] = []  # what is written besides
        self._numbers: dict[Path, int] = {}  # of the newest segment of each file that is written

    def follow(self, files: Iterable[Path], limit: int, index: Path | None = None) -> None:
        """A round begins, whose workers write to `files`; it may be the same again. The index of
        their output counts as well, and is not cut.
        """
        files = list(files)
        self._limit = limit
        before = (*self._written, *self._uncut)
        self._over += [file for file in before if file not in files and file != index]
        numbers = {}
        for file in files:
            found = segments(file)
            self._over += [segment for segment in found if segment not in self._over]
            newest = _number(found[-1]) if found else 0
            numbers[file] = max(newest, self._numbers.get(file, 0))
        self._numbers = numbers
        self._written, self._uncut = files, [] if index is None else [index]
        if not limit:
            self._over.clear()  # nothing is ever removed

    def newest_segment(self, file: Path) -> int:
        """The number of a file's newest segment, which may be removed by now; 0 if none was made.
        It is one of those that are written.
        """
        return self._numbers[file]

    @property
    def _room(self) -> int:
        """Bytes of the limit that are left for what may be cut or removed."""
        return max(0, self._limit - sum(map(size, self._uncut)))

    def cut(self) -> list[Cut]:
        """Cut the files that have grown long."""
        # An index is about to grow, by the cuts.
        room = max(0, self._room - SHORTEST * len(self._uncut))
        longest = room // (2 * max(1, len(self._written)))
        longest = max(SHORTEST, min(longest, LONGEST))
        cuts = []
        for file in self._written:
            try:
                if file.stat().st_size > longest:
                    cuts.append(_cut(file, room // 2, self._numbers[file] + 1))
                    self._numbers[file] += 1
            except OSError:
                continue  # the next look may find it
        self._over += [cut.segment for cut in cuts if cut.segment is not None]
        return cuts

    def prune(self) -> list[Path]:
        """Remove what is oldest until the limit holds; returns what was removed."""
        sizes = {file: size(file) for file in self._over}
        # Files that grow quickly take more than their half until they are cut: at the cost of
        # nothing that is kept.
        room = self._room
        grown = min(sum(map(size, self._written)), room // 2)
        excess = sum(sizes.values()) + grown - room
        if excess <= 0:
            return []
        removed = []
        read = open_files()
        for file in list(self._over):
            if excess <= 0:
                break
            if os.path.realpath(file) in read:
                continue
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
                self._over.remove(file)
                removed.append(file)
                excess -= sizes[file]
        return removed


def segments(file: Path) -> list[Path]:
    """Those of a file, the oldest first."""
    try:
        with os.scandir(file.parent) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(f"{file.name}.")]
    except OSError:
        return []
    numbers = (name.removeprefix(f"{file.name}.") for name in names)
    return [_segment(file, number) for number in sorted(int(n) for n in numbers if n.isdecimal())]


def _segment(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.{number:04}")


def _number(segment: Path) -> int:
    return int(segment.name.rpartition(".")[2])


def _cut(file: Path, most: int, number: int) -> Cut:
    """Of a file that has grown by more than `most` bytes, only these last ones are kept."""
    segment = _segment(file, number)
    source = private_files.open_file(file, os.O_RDWR)
    try:
        size = os.fstat(source).st_size
        begin = max(0, size - most)
        try:
            lost = _copy(source, begin, segment)
        except OSError:  # a full disk: room is what is wanted now
            segment.unlink(missing_ok=True)
            return Cut(file, size, None, number)
        finally:
            os.ftruncate(source, 0)
    finally:
        os.close(source)
    return Cut(file, begin, segment, number, lost)


def _copy(source: int, begin: int, path: Path) -> int:
    """To the end, which is moving. If that moves faster than this copies, some bytes before the
    last ones are left out; returns how many.
    """
    target = private_files.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        end = _send(source, target, begin, os.fstat(source).st_size + LONGEST)
        size = os.fstat(source).st_size
        last = max(end, size - LAST)
        rest = _send(source, target, last, size + LAST)
        return last - end + os.fstat(source).st_size - rest
    finally:
        os.close(target)


def _send(source: int, target: int, begin: int, limit: int) -> int:
    """Copy up to the end, or up to about the limit; returns up to where."""
    while begin < limit and (done := os.sendfile(target, source, begin, LONGEST)):
        begin += done
    return begin


def open_files() -> set[str]:
    """The paths that other processes of this user have open on this host. Touches no file system:
    one of those files may be on one that hangs.
    """
    found = set()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        directory = f"/proc/{pid}/fd"
        with contextlib.suppress(OSError):  # another user's, or gone
            if int(pid) != os.getpid():
                found |= {os.readlink(f"{directory}/{fd}") for fd in os.listdir(directory)}
    return found
