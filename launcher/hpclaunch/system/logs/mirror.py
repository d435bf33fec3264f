"""The mirror: copies the workers' output from their files to the console.

It follows the files of this agent's workers and passes new data in each to the file's taps. The
console gets whole lines where possible, so that lines of two workers do not mix. The file of
duplicates gets the lines with certain words. A file is read only as fast as its slowest sink takes
data: a slow console loses nothing, and no worker waits.
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import NamedTuple, Protocol

from hpclaunch.system.shared.inotify import MODIFY, Inotify
from hpclaunch.worker import private_files

from .log_directory import close_written

CHUNK = 1 << 16  # bytes read at once; a longer line is passed on in pieces
SHARE = 1 << 20  # bytes of one file before it is another file's turn
PARTIAL = 0.1  # seconds after which an unfinished line is shown
WITHOUT_INOTIFY = 0.2  # seconds between two reads of files without an inotify watch
OVERFLOW = -1  # the kernel has dropped events


class Sink(Protocol):
    """The target of a copy. `write` accepts everything; call it only while there is `room`."""

    @property
    def room(self) -> int: ...

    def write(self, data: bytes) -> None: ...


class Tap(NamedTuple):
    """Copies lines to a sink with a prefix; with needles, only whole lines with one of them."""

    sink: Sink
    prefix: bytes = b""
    needles: tuple[bytes, ...] = ()
    patience: float = PARTIAL  # seconds that an unfinished line is held back


class Duplicates:
    """A file of duplicated lines. After a failed write, such as on a full disk, it drops them."""

    room = CHUNK

    def __init__(self, path: Path) -> None:
        self._fd: int | None = None
        self._complaint = ""
        try:
            self._fd = private_files.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except OSError as e:
            self._give_up(e)

    def write(self, data: bytes) -> None:
        while data and self._fd is not None:
            try:
                data = data[os.write(self._fd, data) :]
            except OSError as e:
                self._give_up(e)

    def complaint(self) -> str:
        """Return the reason why writing stopped, once; otherwise ""."""
        complaint, self._complaint = self._complaint, ""
        return complaint

    def close(self) -> None:
        """Close the file; later lines are dropped."""
        if self._fd is not None:
            close_written(self._fd)
            self._fd = None

    def _give_up(self, error: OSError) -> None:
        self.close()
        self._complaint = error.strerror or str(error)


class _Way:
    """The state of copying a file to one tap. `partial` is a line held back since `since`."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap
        self.partial = b""
        self.since = math.inf
        self.last = b"\n"  # the last byte written with a prefix

    @property
    def due(self) -> float:
        """Return when to pass on the unfinished line; never, if it is searched for needles."""
        held = not self.partial or self.tap.needles
        return math.inf if held else self.since + self.tap.patience

    def take(self, data: bytes, now: float) -> None:
        text = self.partial + data
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        if end:
            self._write(text[:end])
        if end or not self.partial:
            self.since = now
        self.partial = text[end:]
        if len(self.partial) >= CHUNK:
            self.flush()

    def flush(self) -> None:
        if self.partial:
            self._write(self.partial)
            self.partial = b""

    def _write(self, text: bytes) -> None:
        if self.tap.needles:
            text = self._matching(text)
        elif self.tap.prefix:
            text = self._prefixed(text)
        if text:
            self.tap.sink.write(text)

    def _matching(self, text: bytes) -> bytes:
        prefix, needles = self.tap.prefix, self.tap.needles
        if not any(needle in text for needle in needles):  # as in most of the output
            return b""
        lines = text.splitlines(keepends=True)
        found = [line for line in lines if any(needle in line for needle in needles)]
        return b"".join(prefix + line.rstrip(b"\r\n") + b"\n" for line in found)

    def _prefixed(self, text: bytes) -> bytes:
        """Put the prefix before each line, once for a line that is read in several pieces.

        Text after a carriage return gets it, too: it overwrites the line.
        """
        begun = self.last not in b"\r\n" or (self.last == b"\r" and text.startswith(b"\n"))
        self.last = text[-1:]
        lines = self.tap.prefix.join(text.splitlines(keepends=True))
        return lines if begun else self.tap.prefix + lines


class _Stream:
    """One followed file."""

    def __init__(self, fd: int, ways: tuple[_Way, ...]) -> None:
        self.fd = fd
        self.ways = ways
        self.behind = True  # there may be more to read

    @property
    def room(self) -> int:
        return min(way.tap.sink.room for way in self.ways)

    @property
    def is_truncated(self) -> bool:
        """Return whether the file has become shorter than what was read of it."""
        return os.fstat(self.fd).st_size < os.lseek(self.fd, 0, os.SEEK_CUR)

    def flush(self) -> None:
        for way in self.ways:
            way.flush()


class Mirror:
    """Follows files; `fileno` is readable when one has grown."""

    def __init__(self) -> None:
        self._streams: dict[int, _Stream] = {}  # by watch; by -fd - 1 without
        self._inotify = Inotify()
        self._look_at = math.inf  # when to read files without a watch

    def fileno(self) -> int:
        """Return the descriptor; -1 without inotify."""
        return self._inotify.fileno()

    def follow(self, path: Path | str, *taps: Tap) -> None:
        """Copy what is written to a file from now on. A missing file is created, even without a
        tap.
        """
        fd = private_files.open_file(path, os.O_RDONLY | os.O_CREAT)
        if not taps:
            os.close(fd)
            return
        os.lseek(fd, 0, os.SEEK_END)
        try:
            here = f"/proc/self/fd/{fd}"  # the path may name another file by now
            key = self._inotify.add_watch(here, MODIFY)
        except OSError:
            key, self._look_at = -fd - 1, 0.0
        self._streams[key] = _Stream(fd, tuple(map(_Way, taps)))

    def feeds(self, sink: Sink) -> bool:
        """Return whether a followed file is copied to this sink."""
        ways = (way for stream in self._streams.values() for way in stream.ways)
        return any(way.tap.sink is sink for way in ways)

    def next_deadline(self) -> float:
        """Return when to call `wake`. A console without room does not count, since its descriptor
        becomes writable when there is room again.
        """
        if self._may_copy:
            return 0.0
        due = (way.due for s in self._streams.values() if not s.behind for way in s.ways)
        return min(self._look_at, *due, math.inf)

    @property
    def _may_copy(self) -> bool:
        return any(s.behind and s.room > 0 for s in self._streams.values())

    def wake(self, now: float) -> None:
        """Copy what is new. Call this when something has grown, when a deadline has passed, and
        when the console has room again.
        """
        grown = {*self._inotify.read()}
        for key, stream in self._streams.items():
            stream.behind = stream.behind or key in grown or OVERFLOW in grown
        if now >= self._look_at:
            self._look_at = now + WITHOUT_INOTIFY
            for key, stream in self._streams.items():
                stream.behind = stream.behind or key < 0
        for stream in self._streams.values():
            self._copy(stream, now)

    def _copy(self, stream: _Stream, now: float) -> None:
        left = SHARE
        while stream.behind and left > 0 and (room := stream.room) > 0:
            try:
                data = os.read(stream.fd, min(CHUNK, room))
                if not data and stream.is_truncated:  # a worker has truncated it
                    os.lseek(stream.fd, 0, os.SEEK_SET)
                    continue
            except OSError:  # the file system has trouble: wait until there is more to read
                data = b""
            if not data:
                stream.behind = False
                break
            left -= len(data)
            for way in stream.ways:
                way.take(data, now)
        if stream.behind:
            return  # the rest of its last line may still be unread
        for way in stream.ways:
            if now >= way.due:
                way.flush()

    def finish(self, now: float) -> None:
        """Show the rest, as far as the console accepts it. The workers must be gone."""
        for stream in self._streams.values():
            stream.behind = True
        self.wake(now)
        while self._may_copy:
            self.wake(now)
        for stream in self._streams.values():
            if not stream.behind:
                stream.flush()

    def close(self) -> None:
        for stream in self._streams.values():
            os.close(stream.fd)
        self._streams.clear()
        self._inotify.close()

    def forget(self) -> None:
        """Stop following files that were shown completely: the next round has its own."""
        for key, stream in list(self._streams.items()):
            if stream.behind:
                continue
            stream.flush()
            del self._streams[key]
            with contextlib.suppress(OSError):  # it has no watch, or the file was removed
                self._inotify.rm_watch(key)
            os.close(stream.fd)
        if all(key >= 0 for key in self._streams):
            self._look_at = math.inf
