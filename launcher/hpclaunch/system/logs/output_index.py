"""The index of the workers' output: when which bytes of their files came.

Workers write to their files themselves, without times. The log service notes beside them when these
files grew: one index for each agent and round, `index-agent-AGENT.txt`. Its lines are in order of
time (seconds since the epoch, on the clock of the agent's node):

    1764025034.123 begin {"format": 1, "launch": "71.0", "host": "n1", "limited": true}
    1764025034.520 0.000 rank-3.out 1 4711 520
    1764025099.004 cut rank-3.out 1 0

The second line says that 520 bytes from byte 4711 on came within the last 0.000 seconds. They are
in segment 1 of rank-3.out, or will be once that file is cut (`volume.py`). The third line says that
it was, and that the segment has what came from byte 0 on.

What is not in an index is only without a time. So nothing here raises OSError, and what cannot be
written now is written later, as of then.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import inotify_simple

from hpclaunch.worker import private_files

from .log_directory import size

FORMAT = 1
NAMES = re.compile(r"index-agent-[\w.-]+\.txt")
PERIOD = 1.0  # seconds between two writes, and in the long run between two lines of one file
REST = 0.05  # seconds for which a file that has grown is not watched
JOINED = 0.1  # seconds: what comes so soon after what came before is taken together with it
BURST = 10  # lines of a file that may come at once, after as many seconds without any


@dataclass(frozen=True, slots=True)
class FileGrowth:
    """A file has grown by `length` bytes from `begin` on, between `since` and `until`."""

    since: float
    until: float
    name: str
    segment: int
    begin: int
    length: int

    @property
    def time(self) -> float:
        return self.until


@dataclass(frozen=True, slots=True)
class SegmentCut:
    """A segment of a file has what came from the byte `begin` on."""

    time: float
    name: str
    segment: int
    begin: int


@dataclass(frozen=True, slots=True)
class IndexBegun:
    """A log service has begun to follow the files of a round."""

    time: float
    launch: str
    host: str
    limited: bool  # files may be cut


IndexLine = FileGrowth | SegmentCut | IndexBegun


def file_name(label: str) -> str:
    """Of the index of an agent."""
    return f"index-agent-{label}.txt"


def parse(line: bytes) -> IndexLine | None:
    """None for a line of another version, or one that is torn."""
    words = line.decode(errors="replace").split(" ", 2)
    try:
        at, word, rest = float(words[0]), words[1], words[2]
        if word == "begin":
            told = json.loads(rest)
            if told["format"] != FORMAT:
                return None
            return IndexBegun(at, str(told["launch"]), str(told["host"]), bool(told["limited"]))
        name, *numbers = rest.split()
        if word == "cut":
            segment, begin = map(int, numbers)
            return SegmentCut(at, name, segment, begin)
        segment, begin, length = map(int, numbers)
        return FileGrowth(at - float(word), at, name, segment, begin, length)
    except (ValueError, IndexError, KeyError, TypeError):
        return None


@dataclass(slots=True)
class _Followed:
    """One file. `size` is how much of it is in the index, or in `news`."""

    path: Path
    segment: int
    size: int
    news: list[FileGrowth] = field(default_factory=list)  # not written yet
    allowance: float = BURST  # lines
    allowed_at: float = 0.0  # when that was so
    look_at: float = math.inf  # while nobody tells of its growth


class OutputIndex:
    """Of one round, from when it is made until `close`. `fileno` is readable when a file has grown;
    `wake` is due then, and at `next_deadline`.

    A file that grows all the time costs no more than a look every second: whoever tells of its
    growth does so once, and is asked again later.
    """

    def __init__(
        self,
        path: Path,
        *,
        launch: str,
        host: str,
        limited: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._time = 0.0
        self._files: dict[Path, _Followed] = {}
        self._watches: dict[int, _Followed] = {}
        self._inotify: inotify_simple.INotify | None = None
        self._fd: int | None = None
        self._write_at = math.inf
        self._is_torn = False  # the last line
        with contextlib.suppress(OSError):
            self._fd = private_files.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._is_torn = os.fstat(self._fd).st_size > 0  # by an agent that was killed, perhaps
        told: dict[str, Any] = {"format": FORMAT, "launch": launch, "host": host}
        told |= {"limited": limited}
        self._write(f"{self._now():.3f} begin {json.dumps(told)}\n")
        with contextlib.suppress(OSError):  # then it looks every second
            self._inotify = inotify_simple.INotify(nonblocking=True)

    def follow(self, path: Path, segments: int, now: float) -> None:
        """A file that is there, of which so many segments were made before."""
        file = _Followed(path, segments + 1, size(path), allowed_at=now)
        self._files[path] = file
        self._watch(file, now)

    def fileno(self) -> int:
        """-1 without inotify."""
        return self._inotify.fileno() if self._inotify is not None else -1

    def next_deadline(self) -> float:
        looks = (file.look_at for file in self._files.values())
        return min(self._write_at, *looks, math.inf)

    def wake(self, now: float) -> None:
        if now >= self._write_at:  # before what is seen now, which is of a later second
            self._write_news()
        told = [] if self._inotify is None else self._inotify.read(timeout=0)
        for event in told:
            file = self._watches.pop(event.wd, None)
            if file is None:  # a watch that is over: it has told of its growth
                continue
            self._look(file, now)
            pause = REST if file.allowance >= 1 else PERIOD
            file.look_at = now + pause
        for file in self._files.values():
            if now >= file.look_at:
                self._watch(file, now)

    def cut(self, path: Path, segment: int, begin: int, length: int) -> None:
        """A file has been cut when it had `length` bytes: those from `begin` on are in the segment
        now, and it is empty.
        """
        if (file := self._files.get(path)) is None:
            return
        self._grow(file, length, time.monotonic())
        self._cut(file, segment, begin)

    def finish(self, now: float) -> None:
        """The workers are gone: what they have written is all there."""
        for file in self._files.values():
            self._look(file, now)
        self._write_news()

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _watch(self, file: _Followed, now: float) -> None:
        """Have its next growth told, once; what has come until then is seen now."""
        file.look_at = now + PERIOD
        if self._inotify is not None:
            flags = inotify_simple.flags.MODIFY | inotify_simple.flags.ONESHOT
            with contextlib.suppress(OSError):  # the kernel grants no more watches
                self._watches[self._inotify.add_watch(file.path, flags)] = file
                file.look_at = math.inf
        self._look(file, now)

    def _look(self, file: _Followed, now: float) -> None:
        self._grow(file, size(file.path), now)

    def _grow(self, file: _Followed, length: int, now: float) -> None:
        if length < file.size:  # somebody else has emptied it: there is no segment
            self._cut(file, file.segment, file.size)
        if length == file.size:
            return
        at, news = self._now(), file.news
        file.allowance = min(BURST, file.allowance + (now - file.allowed_at) / PERIOD)
        file.allowed_at = now
        since, begin = at, file.size
        if news and (at - news[-1].until < JOINED or file.allowance < 1):
            last = news.pop()
            since, begin = last.since, last.begin
        else:
            file.allowance -= 1
        news.append(FileGrowth(since, at, file.path.name, file.segment, begin, length - begin))
        file.size = length
        self._write_at = min(self._write_at, now + PERIOD)

    def _cut(self, file: _Followed, segment: int, begin: int) -> None:
        self._write_news()
        self._write(f"{self._now():.3f} cut {file.path.name} {segment} {begin}\n")
        file.segment, file.size = segment + 1, 0

    def _write_news(self) -> None:
        self._write_at = math.inf
        news = [growth for file in self._files.values() for growth in file.news]
        news.sort(key=lambda growth: growth.until)
        if not news:
            return
        if self._write("".join(map(_line, news))):
            for file in self._files.values():
                file.news.clear()
            return
        for file in self._files.values():  # all of it is one line later on
            if file.news:
                first, last = file.news[0], file.news[-1]
                length = last.begin + last.length - first.begin
                file.news = [
                    FileGrowth(last.until, last.until, last.name, last.segment, first.begin, length)
                ]

    def _write(self, text: str) -> bool:
        if self._fd is None:
            return True
        data = text.encode()
        try:
            written = os.write(self._fd, b"\n" + data if self._is_torn else data)
        except OSError:
            return False
        written -= self._is_torn
        self._is_torn = written < len(data)
        return not self._is_torn

    def _now(self) -> float:
        """The time, which never goes back."""
        self._time = max(self._time, self._clock())
        return self._time


def _line(growth: FileGrowth) -> str:
    lasted = growth.until - growth.since
    where = f"{growth.name} {growth.segment} {growth.begin} {growth.length}"
    return f"{growth.until:.3f} {lasted:.3f} {where}\n"
