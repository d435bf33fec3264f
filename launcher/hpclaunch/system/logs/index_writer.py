"""Writes the index of the workers' output (`output_index.py`), for the log service.

Nothing here raises OSError: without an index, only times are missing. Lines that cannot be written
are dropped, except that a file was emptied.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpclaunch.system.shared.inotify import MODIFY, ONESHOT, Inotify
from hpclaunch.worker import private_files

from .log_directory import close_written, size
from .output_index import JOINED, PERIOD, FileGrowth, IndexBegun, IndexLine, written

REST = 0.05  # seconds for which a file that has grown is not watched
BURST = 10  # lines of a file in quick succession; each PERIOD allows one more


class _Followed:
    """A file, of which `size` bytes are in the index or in `news`."""

    def __init__(self, path: Path, size: int, allowed_at: float) -> None:
        self.path = path
        self.size = size
        self.news: list[FileGrowth] = []  # not written yet
        self.allowance: float = BURST  # lines
        self.allowed_at = allowed_at  # when `allowance` was computed
        self.look_at = math.inf  # when to check it, if inotify does not watch it


class IndexWriter:
    """The writer of one round's index, until `close`. `fileno` is readable when a file has grown;
    call `wake` then, and at `next_deadline`.

    A file that grows all the time is checked about once a second: inotify reports its growth once,
    and the watch is added again later.
    """

    def __init__(
        self, path: Path, *, launch: str, host: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._time = 0.0
        self._files: dict[Path, _Followed] = {}
        self._watches: dict[int, _Followed] = {}
        self._inotify = Inotify()
        self._fd: int | None = None
        self._write_at = math.inf
        self._look_at = math.inf  # the earliest `look_at` of a file
        self._is_torn = False  # the last line has no end
        with contextlib.suppress(OSError):
            self._fd = private_files.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._is_torn = os.fstat(self._fd).st_size > 0  # perhaps: an agent may have been killed
        self._begun: IndexBegun | None = IndexBegun(self._now(), launch, host)
        self._write([])

    def follow(self, path: Path, now: float) -> None:
        """Record the growth of an existing file from now on."""
        file = _Followed(path, size(path), allowed_at=now)
        self._files[path] = file
        self._watch(file, now)
        self._look_at = min(self._look_at, file.look_at)

    def fileno(self) -> int:
        """Return the descriptor; -1 without inotify."""
        return self._inotify.fileno()

    def next_deadline(self) -> float:
        return min(self._write_at, self._look_at)

    def wake(self, now: float) -> None:
        if now >= self._write_at:  # before new growth, which has a later time, is found
            self._write_news()
        for watch in self._inotify.read():
            file = self._watches.pop(watch, None)
            if file is None:  # the kernel's notice that a one-shot watch is over
                continue
            self._look(file, now)
            pause = REST if file.allowance >= 1 else PERIOD
            file.look_at = now + pause
        for file in self._files.values():
            if now >= file.look_at:
                self._watch(file, now)
        self._look_at = min((file.look_at for file in self._files.values()), default=math.inf)

    def finish(self, now: float) -> None:
        """Record the last growth: the workers are gone, and all of their output is in the files."""
        for file in self._files.values():
            self._look(file, now)
        self._write_news()

    def close(self) -> None:
        self._inotify.close()
        if self._fd is not None:
            close_written(self._fd)
            self._fd = None

    def _watch(self, file: _Followed, now: float) -> None:
        """Have inotify report the next growth, once, and record the growth until now."""
        file.look_at = now + PERIOD
        with contextlib.suppress(OSError):  # the kernel grants no more watches
            self._watches[self._inotify.add_watch(file.path, MODIFY | ONESHOT)] = file
            file.look_at = math.inf
        self._look(file, now)

    def _look(self, file: _Followed, now: float) -> None:
        length, at, news = size(file.path), self._now(), file.news
        if length < file.size:  # a worker has truncated it
            news.append(FileGrowth(at, at, file.path.name, 0, 0))
            file.size = 0
            self._write_at = min(self._write_at, now + PERIOD)
        if length == file.size:
            return
        file.allowance = min(BURST, file.allowance + (now - file.allowed_at) / PERIOD)
        file.allowed_at = now
        since, begin = at, file.size
        can_join = bool(news) and news[-1].length > 0
        if can_join and (at - news[-1].until < JOINED or file.allowance < 1):
            last = news.pop()
            since, begin = last.since, last.begin
        else:
            file.allowance -= 1
        news.append(FileGrowth(since, at, file.path.name, begin, length - begin))
        file.size = length
        self._write_at = min(self._write_at, now + PERIOD)

    def _write_news(self) -> None:
        self._write_at = math.inf
        news = [growth for file in self._files.values() for growth in file.news]
        news.sort(key=lambda growth: growth.until)
        if not news:
            return
        is_written = self._write(news)
        for file in self._files.values():
            emptied = [] if is_written else [each for each in file.news if each.length == 0]
            file.news = emptied[-1:]

    def _write(self, lines: Sequence[IndexLine]) -> bool:
        """Write lines, if there is an index. Return False if the write failed."""
        if self._fd is None:
            return True
        begun = [] if self._begun is None else [self._begun]
        data = "".join(map(written, [*begun, *lines])).encode()
        data = b"\n" + data if self._is_torn else data
        try:
            self._is_torn = os.write(self._fd, data) < len(data)
        except OSError:
            return False
        if not self._is_torn:
            self._begun = None
        return not self._is_torn

    def _now(self) -> float:
        """Return the time, which never goes back."""
        self._time = max(self._time, self._clock())
        return self._time
