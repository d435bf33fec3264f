"""Copying of files into a draft, in pieces, so that the caller can pause or stop between them; and
the thread in which a stager calls storage.

If storage hangs, such as an NFS server that is away, each call on it blocks for minutes. So the
stager's main thread makes none: it waits for other threads, and meanwhile does what needs only
memory.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import TypeVar

from hpclaunch.core.staging.files import StagedFile

SPAN = 32 << 20  # bytes that a thread copies before the caller may pause
PIECE = 4 << 20  # bytes that are in memory at once, for each thread
TICK = 0.1  # seconds between two calls of `between` while a piece is copied
THREADS = 8  # since a parallel file system is slow for a single one

T = TypeVar("T")

# Called before each batch with the bytes that are copied so far and the seconds that the last batch
# took, and repeatedly during a batch, with 0 seconds. Returns how many threads copy the next batch.
Between = Callable[[int, float], int]


def at_once(_done: int, _took: float) -> int:
    """Have a copy done without pauses: this is a `Between`."""
    return THREADS


class GivenUpError(Exception):
    """A copy is not worth finishing, or not possible. The text says why."""

    def __init__(self, why: str, host: str = "") -> None:
        """`host` is that of the node which is the cause; "": this one, or none in particular."""
        super().__init__(why)
        self.host = host


class LostError(GivenUpError):
    """The node that has the files is lost, or its script has just deleted them."""


class RewrittenError(GivenUpError):
    """The script has written the files again while they were copied."""


def reason(error: OSError | GivenUpError) -> str:
    """Return the text of an error, with the path or the address that it is about."""
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {cause(error)}".lstrip(": ")
    return str(error)


def cause(error: OSError | GivenUpError) -> str:
    """Return the text of an error, without the path."""
    return getattr(error, "strerror", None) or str(error)


def copy(items: Sequence[StagedFile], source: str, draft: str, between: Between) -> None:
    """Copy items from the directory `source` into `draft`, with their modes and times, and have
    them written to the disk. `between` is called between two pieces, and while threads copy them,
    in case storage stalls. Raises OSError and what `between` raises.
    """
    files = [each for each in items if each.is_file]
    spans, done, took = _spans(files), 0, 0.0
    with ThreadPoolExecutor(THREADS) as pool:
        results([pool.submit(prepare, items, draft)], between, done)
        while batch := list(islice(spans, between(done, took))):
            began = time.monotonic()
            # Another launch removes drafts that have not changed for long.
            touched = pool.submit(os.utime, draft)
            copied = [pool.submit(_copy_span, source, draft, *span) for span in batch]
            done += sum(results(copied, between, done))
            results([touched], between, done)
            took = time.monotonic() - began
        finished = [pool.submit(_finish, os.path.join(draft, each.name), each) for each in files]
        results(finished, between, done)
        results([pool.submit(_finish_folders, items, draft)], between, done)


def prepare(items: Iterable[StagedFile], draft: str) -> None:
    """Make the links in a draft, and the directories of all items."""
    for each in items:
        target = os.path.join(draft, each.name)
        os.makedirs(target if each.is_folder else os.path.dirname(target), exist_ok=True)
        if each.is_link:
            os.symlink(each.target, target)
            with contextlib.suppress(OSError):  # some file systems keep no times of links
                os.utime(target, ns=(each.time, each.time), follow_symlinks=False)


def _finish_folders(items: Iterable[StagedFile], draft: str) -> None:
    """Finish the directories, each after those in it."""
    for each in reversed([each for each in items if each.is_folder]):
        _finish(os.path.join(draft, each.name), each)


def results(calls: Sequence[Future[T]], between: Between, done: int) -> list[T]:
    """Wait for calls of threads. Raises what they raise, and in the end what `between` raises."""
    given_up: GivenUpError | None = None
    while wait(calls, TICK).not_done:
        try:
            between(done, 0.0)
        except GivenUpError as e:
            given_up = e
    returned = [call.result() for call in calls]
    if given_up is not None:
        raise given_up
    return returned


class StorageThread:
    """One thread for calls on storage, so that they follow each other. `meanwhile` is called while
    the stager waits.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self.meanwhile: Between = at_once
        self.began = 0.0  # the newest call that has not returned

    def run(self, work: Callable[..., T], *args: object, meanwhile: Between | None = None) -> T:
        """Return what `work` returns. Raises what it raises, and what `meanwhile` raises: a
        GivenUpError only once the work is done, an OSError at once.
        """
        outer, self.began = self.began, time.monotonic()
        call = self._pool.submit(work, *args)
        try:
            return results([call], meanwhile or self.meanwhile, 0)[0]
        finally:
            self.began = outer
            call.cancel()  # if nobody waits for it any longer


def make_parents(name: str, source: str, root: str) -> None:
    """Make the directories above a path below `root`, with the modes that they have in `source`.
    Raises OSError.
    """
    folder = os.path.dirname(name)
    path = os.path.join(root, folder)
    if folder and not os.path.isdir(path):
        make_parents(folder, source, root)
        os.makedirs(path, exist_ok=True)
        mode = os.stat(os.path.join(source, folder)).st_mode & 0o777 | 0o700
        with contextlib.suppress(PermissionError):  # some file systems keep modes by ACLs only
            os.chmod(path, mode | os.stat(path).st_mode & 0o7000)


def _spans(files: Iterable[StagedFile]) -> Iterator[tuple[str, int, int]]:
    for each in files:
        for start in range(0, max(1, each.size), SPAN):
            yield each.name, start, min(SPAN, each.size - start)


def _copy_span(source: str, draft: str, name: str, start: int, length: int) -> int:
    """Copy some bytes of a file, fewer if it has become shorter. Return how many."""
    done = 0
    reading = os.open(os.path.join(source, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        mode = os.fstat(reading).st_mode & 0o777 | 0o600
        writing = os.open(os.path.join(draft, name), flags, mode)
        try:
            while done < length:
                data = os.pread(reading, min(PIECE, length - done), start + done)
                if not data:
                    break
                view = memoryview(data)
                while view:
                    written = os.pwrite(writing, view, start + done)
                    view, done = view[written:], done + written
            os.fdatasync(writing)
            # Drop the written pages: memory is scarce while checkpoints are in it.
            os.posix_fadvise(writing, start, done, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    return done


def _finish(path: str, each: StagedFile) -> None:
    """Set the mode and the times of a copied file or directory, and have it written to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        inherited = found.st_mode & 0o7000  # such as setgid, in a group's directory
        with contextlib.suppress(PermissionError):  # some file systems keep modes by ACLs only
            os.fchmod(fd, each.mode & 0o777 | inherited)
        os.utime(fd, ns=(found.st_atime_ns, each.time))
        os.fsync(fd)
    finally:
        os.close(fd)


def sync(path: str) -> None:
    """Have a file or the names in a directory written to the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def hold(items: Sequence[StagedFile], root: str, held: str) -> None:
    """Keep the files of a checkpoint by hard links in `held`, so that the script may delete it
    while it is copied. Raises OSError.
    """
    prepare(items, held)
    for name in (each.name for each in items if each.is_file):
        os.link(os.path.join(root, name), os.path.join(held, name), follow_symlinks=False)
