"""Tests whether the files of a checkpoint are whole: by their structure, and by reading every byte.

Files that were found whole are remembered by their identity, so that nothing is read twice.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from zipfile import ZIP_STORED

from . import ALL, archives
from .archives import DamagedError, Window
from .candidates import FileKind, Part
from .listing import SLOW, Identity, of_each

CHUNK = 4 << 20
BATCH = 64 << 20
READERS = 8  # threads, since a parallel file system is slow for a single one
MANY = 4  # files per node; with so many or more, each node reads whole files
KEPT = 1 << 18  # files that are remembered


class Span(NamedTuple):
    """Some bytes of a file."""

    start: int
    length: int
    checksum: int | None


class Outcome(NamedTuple):
    """The result of reading. A checkpoint with something `wrong` cannot be used."""

    wrong: str  # "label: what is wrong", or ""
    is_lasting: bool  # the damage stays: the file was read, and not rewritten meanwhile
    is_complete: bool  # there was time to read everything, and nothing is wrong


class ResultCache:
    """The results so far: what is whole, and what is damaged. Safe for several threads."""

    def __init__(self) -> None:
        self._built: set[Identity] = set()  # files whose structure is whole
        self._read: dict[Identity, set[int]] = {}  # the starts of the batches that were read
        self.damage: dict[str, str] = {}  # damage that reading has found, by a checkpoint's mark

    def is_built(self, part: Part) -> bool:
        return part.identity in self._built

    def build(self, part: Part) -> None:
        self._forget()
        self._built.add(part.identity)

    def spans_read(self, part: Part) -> set[int]:
        return self._read.setdefault(part.identity, set())

    def _forget(self) -> None:
        """Limit the memory that this takes, since a job may save for weeks."""
        if len(self._built) > KEPT:
            self._built.clear()
        if len(self._read) > KEPT:
            self._read.clear()


def structure(parts: Iterable[Part], cache: ResultCache) -> str:
    """Return what is wrong with the first part that is not whole, as "label: what", or ""."""
    todo = [part for part in parts if not cache.is_built(part)]
    found = of_each(lambda part: _structure(part, cache), todo, 4 * SLOW)
    return next(filter(None, found), "")


def _structure(part: Part, cache: ResultCache) -> str:
    entry = part.entry
    if part.kind == FileKind.PIECES:
        end = max((start + length for start, length in part.pieces), default=0)
        wrong = archives.CUT if entry.size < end else ""
    else:
        try:
            with _opened(part) as window:
                _check(part.kind, window)
            wrong = ""
        except DamagedError as e:
            wrong = str(e)
        except OSError as e:
            wrong = f"unreadable ({e.strerror or e})"
    if not wrong:
        cache.build(part)
    return wrong and part.says(wrong)


def _check(kind: FileKind, window: Window) -> None:
    match kind:
        case FileKind.TORCH:
            if not archives.check_torch(window):
                raise DamagedError(archives.FOREIGN)
        case FileKind.TENSORS:
            archives.check_tensors(window)
        case FileKind.JSON:
            archives.check_json(window)
        case _:
            archives.check_torch(window)


@contextlib.contextmanager
def _opened(part: Part) -> Iterator[Window]:
    """Open a file. Raises DamagedError if it is no longer the file that was listed."""
    with archives.opened(part.entry.path) as window:
        if _is_another(part, os.fstat(window.fd)):
            raise DamagedError("being written again")
        yield window


def _is_another(part: Part, now: os.stat_result) -> bool:
    then = part.entry.stat
    was = then.st_ino, then.st_size, then.st_mtime_ns
    return (now.st_ino, now.st_size, now.st_mtime_ns) != was


def _has_changed(part: Part) -> bool:
    try:
        return _is_another(part, os.stat(part.entry.path))
    except OSError:
        return False


# Every byte


class CheckpointReading:
    """A reading of the bytes of a checkpoint, as many as time allows, in several threads.

    Progress is remembered: another reading of the same parts continues from there. `share` is
    (k, n): this node is the k-th of n nodes, each of which reads its share of the bytes.
    """

    def __init__(
        self,
        parts: Iterable[Part],
        cache: ResultCache,
        *,
        until: float = float("inf"),  # on the monotonic clock
        is_asked: Callable[[], bool] | None = None,  # a request has arrived, so reading ends
        share: tuple[int, int] = ALL,
    ) -> None:
        self._parts = list(parts)
        self._cache = cache
        self._until = until
        self._is_asked = is_asked
        self._share = share
        self._stop = threading.Event()
        self._wrong = ""
        self._is_lasting = True

    def run(self) -> Outcome:
        todo = self._batches()
        one_at_a_time = threading.Lock()

        def work() -> None:
            while not self._is_over():
                with one_at_a_time:
                    task = next(todo, None)
                if task is None:
                    return
                self._take(*task)

        with ThreadPoolExecutor(READERS) as pool:
            running = [pool.submit(work) for _ in range(READERS)]
        for each in running:
            each.result()
        return Outcome(self._wrong, self._is_lasting, not self._stop.is_set())

    def _is_over(self) -> bool:
        if time.monotonic() > self._until or (self._is_asked is not None and self._is_asked()):
            self._stop.set()
        return self._stop.is_set()

    def _batches(self) -> Iterator[tuple[Part, list[Span]]]:
        """Yield the batches that this node reads. If there are many files, it reads whole ones."""
        parts, share, number = self._parts, self._share, 0
        if len(parts) >= MANY * share[1]:
            parts, share = parts[share[0] :: share[1]], ALL
        for part in parts:
            try:
                for batch in _batches(spans_of(part)):
                    if number % share[1] == share[0]:
                        yield part, batch
                    number += 1
            except (DamagedError, OSError) as e:
                self._fail(part, e)
                return

    def _take(self, part: Part, batch: list[Span]) -> None:
        done = self._cache.spans_read(part)
        try:
            if batch[0].start in done or self._verify(part, batch):
                done.add(batch[0].start)
        except (DamagedError, OSError) as e:
            self._fail(part, e)

    def _verify(self, part: Part, batch: list[Span]) -> bool:
        """Verify a batch. Return False if time was up before its end. Raises DamagedError."""
        with _opened(part) as window:
            for start, length, checksum in batch:
                crc, at = 0, start
                while at < start + length:
                    if self._is_over():
                        return False
                    data = window.read(at, min(CHUNK, start + length - at))
                    if checksum is not None:
                        crc = zlib.crc32(data, crc)
                    at += len(data)
                if checksum is not None and crc != checksum:
                    raise DamagedError(f"damaged (wrong checksum of the {length} bytes at {start})")
        return True

    def _fail(self, part: Part, error: Exception) -> None:
        may_pass = isinstance(error, OSError)  # a file system that was away for a moment
        words = f"unreadable ({error})" if may_pass else str(error)
        if not self._wrong:
            self._wrong = part.says(words)
            self._is_lasting = not may_pass and not _has_changed(part)
        self._stop.set()


def spans_of(part: Part) -> Iterator[Span]:
    """Yield the spans of a file: those with checksums if it has any, otherwise equal pieces of it.
    Raises DamagedError. Take them one by one: a file may name more than there is time for."""
    with _opened(part) as window:
        pieces = part.pieces if part.kind == FileKind.PIECES else ((0, window.length),)
        for start, length in pieces:
            if start + length > window.length:
                raise DamagedError(archives.CUT)
            yield from _spans(Window(window.fd, length, start), length, part.kind)


def _spans(window: Window, length: int, kind: FileKind) -> Iterator[Span]:
    head = window.head()
    if head[:4] == archives.LOCAL and archives.is_torch(head):
        found = archives.members(window)
        checked = any(member.CRC for member in found)  # zero with set_crc32_options(False)
        for member in found:
            begin = window.start + archives.contents(window, member)
            stored = checked and member.compress_type == ZIP_STORED
            yield Span(begin, member.compress_size, member.CRC if stored else None)
        return
    if kind == FileKind.PIECES and head and not head.strip(b"\0"):
        raise DamagedError(archives.UNWRITTEN)
    for at in range(0, length, BATCH):  # so that several threads share a large file
        yield Span(window.start + at, min(BATCH, length - at), None)


def _batches(spans: Iterable[Span]) -> Iterator[list[Span]]:
    batch: list[Span] = []
    room = BATCH
    for span in spans:
        if batch and span.length > room:
            yield batch
            batch, room = [], BATCH
        batch.append(span)
        room -= span.length
    if batch:
        yield batch
