"""The log directory and its mirror on the console.

    DIR/round-0/rank-3.out    .err    .error.json

A worker writes to its files itself: a dead agent loses no line and a stalled console stops no
worker. The mirror follows the files of this agent's workers and copies them to the console,
unprefixed, whole lines where it can, so that the lines of two ranks do not tear each other.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import inotify_simple

from hpclaunch.core.errors import UsageError

CHUNK = 1 << 16
PARTIAL = 0.1  # seconds after which a line without an end is shown all the same
WITHOUT_INOTIFY = 0.2  # seconds between two looks where the kernel grants no more watches
TAIL_BYTES = 4096
TAIL_LINES = 12


class LogDirectory:
    """Made private to the user; files in it are appended to, never overwritten."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            # A directory of the user's own choice keeps its mode; what we put in it is private.
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


def tail(*paths: Path) -> str:
    """The last lines of the first file that has any: what a worker wrote before it ended."""
    for path in paths:
        try:
            with path.open("rb") as f:
                f.seek(0, os.SEEK_END)
                f.seek(max(0, f.tell() - TAIL_BYTES))
                text = f.read().decode(errors="replace").strip("\n")
        except OSError:
            continue
        if text:
            return "\n".join(text.splitlines()[-TAIL_LINES:])
    return ""


class Sink(Protocol):
    """Where the mirror writes: `write` never blocks, `room` says how much it will hold."""

    @property
    def room(self) -> int: ...

    def write(self, data: bytes) -> None: ...


@dataclass(slots=True)
class _Stream:
    """One followed file. `partial` is an unfinished line, read at `since` and not yet shown."""

    fd: int
    sink: Sink
    partial: bytes = b""
    since: float = math.inf
    behind: bool = True  # there may be more to read


@dataclass(slots=True)
class Mirror:
    """Follows files; `fileno` is readable when one has grown."""

    _streams: dict[int, _Stream] = field(default_factory=dict)  # by watch descriptor
    _inotify: inotify_simple.INotify | None = None
    _look_at: float = math.inf

    def __post_init__(self) -> None:
        try:
            self._inotify = inotify_simple.INotify(nonblocking=True)
        except OSError:
            self._inotify = None

    def fileno(self) -> int:
        """-1 without inotify."""
        return self._inotify.fileno() if self._inotify is not None else -1

    def follow(self, path: Path | str, sink: Sink) -> None:
        """Copy what is written to a file from now on; it is created where it is missing."""
        flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        os.lseek(fd, 0, os.SEEK_END)
        key = -fd - 1
        if self._inotify is not None:
            try:
                key = self._inotify.add_watch(path, inotify_simple.flags.MODIFY)
            except OSError:
                self._look_at = 0.0
        else:
            self._look_at = 0.0
        self._streams[key] = _Stream(fd, sink)

    def next_deadline(self) -> float:
        shown = (s.since + PARTIAL for s in self._streams.values() if s.partial)
        return min(self._look_at, *shown, math.inf)

    def wake(self, now: float) -> None:
        """Something has grown, or a deadline has passed, or the console has room again."""
        if self._inotify is not None:
            for event in self._inotify.read(timeout=0):
                if event.wd in self._streams:
                    self._streams[event.wd].behind = True
        if now >= self._look_at:
            self._look_at = now + WITHOUT_INOTIFY
            for key, stream in self._streams.items():
                stream.behind = stream.behind or key < 0
        for stream in self._streams.values():
            self._copy(stream, now)

    def _copy(self, stream: _Stream, now: float) -> None:
        while stream.behind and (room := stream.sink.room) > 0:
            data = os.read(stream.fd, min(CHUNK, room))
            if not data:
                stream.behind = False
                break
            text = stream.partial + data
            end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
            if end:
                stream.sink.write(text[:end])
            if end or not stream.partial:
                stream.since = now
            stream.partial = text[end:]
        if stream.partial and now >= stream.since + PARTIAL:
            stream.sink.write(stream.partial)
            stream.partial = b""

    def finish(self, now: float) -> None:
        """The workers are gone: show the rest. What the console does not take is in the files."""
        for stream in self._streams.values():
            stream.behind = True
        self.wake(now)
        for stream in self._streams.values():
            stream.sink.write(stream.partial)
            stream.partial = b""

    @property
    def behind(self) -> bool:
        return any(s.behind for s in self._streams.values())

    def close(self) -> None:
        for stream in self._streams.values():
            os.close(stream.fd)
        self._streams.clear()
        if self._inotify is not None:
            self._inotify.close()

    def forget(self) -> None:
        """Stop following what has been shown whole; the files of the next round come."""
        for key, stream in list(self._streams.items()):
            if stream.behind:
                continue
            os.close(stream.fd)
            if key >= 0 and self._inotify is not None:
                self._inotify.rm_watch(key)
            del self._streams[key]
