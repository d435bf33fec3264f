"""The output of a job's workers, merged by time from the files of its log directories.

The indexes (`output_index.py`) say when which bytes were written. They are read in order, and the
bytes piece by piece, so that little is in memory however large the files are. Bytes that no index
mentions are shown, too: in the middle of a file with the time of the bytes after them, and at its
end with the time of its last change. A file without an index comes at the end of its round.

Nothing here waits. To follow a job, call `JobOutput.look` and `lines` again.
"""

from __future__ import annotations

import heapq
import math
import os
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from hpclaunch.worker import private_files

from .log_directory import INDEXES, rounds, size
from .output_index import EMPTIED, JOINED, PERIOD, FileGrowth, IndexBegun, IndexLine, parse

CHUNK = 1 << 16  # bytes read at once; a longer line is split
LONGEST = 4096  # bytes of a line of an index
MOST_OPEN = 200  # files
UNDATED = 1 << 20  # bytes at the end of a recently changed file that are shown without times
ALL = 1 << 62  # bytes
FILES = re.compile(r"rank-(\d{1,9})\.(?:out|err)")


@dataclass(frozen=True, slots=True)
class OutputLine:
    """A line that a worker has written, without its end."""

    time: float  # seconds since the epoch
    dated: bool  # the time is known
    round: Path  # its directory
    begun: IndexBegun | None  # the first line of its index; None without an index
    rank: int
    text: bytes


_Timed: TypeAlias = tuple[float, OutputLine | None]


@dataclass(frozen=True, slots=True)
class LineFilter:
    """A choice of lines."""

    ranks: frozenset[int] | None = None  # None: all
    node: str = ""  # "": all
    errors_only: bool = False  # only standard error
    since: float = -math.inf  # seconds since the epoch


def merged(streams: Iterable[tuple[float, Iterator[OutputLine]]]) -> Iterator[OutputLine]:
    """Yield the lines of streams by time. Each stream has a time before which it is not read."""

    def beginning(begin: float, stream: Iterator[OutputLine]) -> Iterator[_Timed]:
        yield begin, None  # the stream is read once this is the earliest
        for line in stream:
            yield max(begin, line.time), line

    in_order = sorted(streams, key=lambda stream: stream[0])
    timed = heapq.merge(*(beginning(*each) for each in in_order), key=lambda each: each[0])
    yield from (line for _, line in timed if line is not None)


def _changed(path: Path) -> float:
    """Return when a file last changed; 0 if it is not there."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


class _OpenFiles:
    """A cache of open files."""

    def __init__(self) -> None:
        self._fds: OrderedDict[Path, int] = OrderedDict()
        self.refused: OSError | None = None  # the last error for a file that may not be read

    def read(self, path: Path, begin: int, length: int) -> bytes:
        """Return up to `length` bytes from `begin` on; b"" if there are none."""
        for _ in range(2):  # a network file system shows new bytes once a file is opened anew
            try:
                if data := os.pread(self._fd(path), length, begin):
                    return data
            except PermissionError as e:
                self.refused = e
            except OSError:
                pass  # it was removed, or cannot be read now
            self._close(path)
        return b""

    def _fd(self, path: Path) -> int:
        if path not in self._fds:
            while len(self._fds) >= MOST_OPEN:
                os.close(self._fds.popitem(last=False)[1])
            self._fds[path] = private_files.open_file(path, os.O_RDONLY)
        self._fds.move_to_end(path)
        return self._fds[path]

    def _close(self, path: Path) -> None:
        if (fd := self._fds.pop(path, None)) is not None:
            os.close(fd)


@dataclass(slots=True)
class _WorkerFile:
    """One stream of one worker in a round, read up to the byte `offset`. If that is None, bytes
    before the first growth are skipped.
    """

    path: Path
    rank: int
    order: int  # of lines with the same time
    files: _OpenFiles
    offset: int | None
    emptied: float = -math.inf  # time of the last truncation: earlier bytes are gone
    unfinished: bytes = b""  # the beginning of a line
    growths: deque[tuple[FileGrowth, IndexBegun]] = field(default_factory=deque)  # to be read
    held: OutputLine | None = None  # the next line
    begun: IndexBegun | None = None
    _lines: Iterator[OutputLine] = field(default_factory=lambda: iter(()))

    def advance(self) -> bool:
        """Read the next line into `held`. Return False if there is none so far."""
        self.held = next(self._lines, None)
        while self.held is None and self.growths:
            growth, self.begun = self.growths.popleft()
            self._lines = self._grown(growth)
            self.held = next(self._lines, None)
        return self.held is not None

    def _grown(self, growth: FileGrowth) -> Iterator[OutputLine]:
        if self.offset is None:
            self.offset = growth.begin
        if growth.length == 0:  # the file was emptied
            self.offset, self.unfinished = 0, b""
        end = growth.begin + growth.length
        if end <= self.offset:
            return  # these bytes were read before
        if self.offset < growth.begin:
            yield from self._read(growth.begin, growth.since)  # bytes that the index has missed
            self.offset = growth.begin
        lasted = growth.until - growth.since
        pace = lasted / growth.length if lasted > JOINED else 0.0
        yield from self._read(end, growth.since, pace)
        self.offset = end

    def rest(self, *, final: bool) -> Iterator[OutputLine]:
        """Yield the lines that no index mentions. `final`: nothing more will be written."""
        changed, dated = _changed(self.path), self.begun is not None
        yield from self._read(ALL, changed, dated=dated)
        if final and self.unfinished:
            text, self.unfinished = self.unfinished, b""
            yield self._line(text, changed, dated=dated)

    def skip_to_the_last(self, since: float) -> None:
        """Skip a file that no index mentions after `since`; if it has changed, keep its end."""
        end = size(self.path)
        self.offset = max(0, end - UNDATED) if _changed(self.path) >= since else end

    def _read(
        self, end: int, time: float, pace: float = 0.0, *, dated: bool = True
    ) -> Iterator[OutputLine]:
        """Yield the lines up to a byte of the file. `pace`: seconds from one byte to the next."""
        assert self.offset is not None, "it is known where to begin"
        first = self.offset
        while self.offset < end:
            data = self.files.read(self.path, self.offset, min(CHUNK, end - self.offset))
            if not data:
                return
            at = time + pace * (self.offset - first)
            self.offset += len(data)
            for text in self._split(data):
                yield self._line(text, min(at, time + pace * (end - first)), dated=dated)
                at += pace * (len(text) + 1)

    def _split(self, data: bytes) -> Iterator[bytes]:
        *lines, self.unfinished = (self.unfinished + data).split(b"\n")
        yield from lines
        if len(self.unfinished) >= CHUNK:
            text, self.unfinished = self.unfinished, b""
            yield text

    def _line(self, text: bytes, time: float, *, dated: bool) -> OutputLine:
        # A progress bar overwrites its line again and again: its last state is shown.
        shown = text.rstrip(b"\r").rpartition(b"\r")[2]
        return OutputLine(time, dated, self.path.parent, self.begun, self.rank, shown)


class _OutputIndex:
    """One agent's index of a round, read from its beginning or from a time on."""

    def __init__(self, path: Path, files: _OpenFiles) -> None:
        self._path = path
        self._files = files
        self._position = 0  # in the index
        self._lines: deque[IndexLine] = deque()  # read from the index, and not yet used
        self._heap: list[tuple[float, int, _WorkerFile]] = []
        self._read_until = -math.inf  # the time of the last index line that was used
        first, _ = self._parsed(0)
        begun = next((line for line in first if isinstance(line, IndexBegun)), None)
        self.begun = begun or IndexBegun(0.0, "", "")

    @property
    def size(self) -> int:
        return size(self._path)

    def skip_to(self, since: float) -> None:
        """Skip lines of an earlier time: they are in order."""
        low, high = 0, size(self._path)
        while high - low > LONGEST:
            middle = (low + high) // 2
            data = self._files.read(self._path, middle, 2 * LONGEST)
            begin = data.find(b"\n") + 1
            line = parse(data[begin:].partition(b"\n")[0])
            if line is not None and line.time < since:
                low = middle + begin
            else:
                high = middle
        self._position = low

    def emptied(self) -> Iterator[IndexLine]:
        """Yield the lines after this position that say that a file was emptied."""
        return self.everything(self._position, EMPTIED)

    def everything(self, position: int = 0, ending: bytes = b"") -> Iterator[IndexLine]:
        """Yield all lines with this end from a byte on, whatever was read before."""
        lines, length = self._parsed(position, ending)
        while length:
            yield from lines
            position += length
            lines, length = self._parsed(position, ending)

    def lines(
        self, file_of: Callable[[str], _WorkerFile | None], since: float
    ) -> Iterator[OutputLine]:
        """Yield what is new. `file_of` finds the file of a name; None for an unwanted one."""
        more = True
        while True:
            # An earlier line of output may come later in the index: read two periods ahead.
            while more and (not self._heap or self._read_until <= self._heap[0][0] + 2 * PERIOD):
                more = self._take(file_of, since)
            if not self._heap:
                return
            _, order, file = self._heap[0]
            line = file.held
            assert line is not None, "it is in the heap for that"
            if file.advance() and file.held is not None:
                heapq.heapreplace(self._heap, (file.held.time, order, file))
            else:
                heapq.heappop(self._heap)
            yield line

    def _take(self, file_of: Callable[[str], _WorkerFile | None], since: float) -> bool:
        """Use the next line of the index. Return False if there is none yet."""
        if not self._lines:
            lines, length = self._parsed(self._position)
            self._position += length
            self._lines += lines
            if not length:
                return False
        while self._lines:
            line = self._lines.popleft()
            if isinstance(line, IndexBegun):
                self.begun = line
                continue
            file = file_of(line.name)
            if file is None or line.time < max(since, file.emptied):
                continue
            self._read_until = line.time
            file.growths.append((line, self.begun))
            if file.held is None and file.advance() and file.held is not None:
                heapq.heappush(self._heap, (file.held.time, file.order, file))
            break
        return True

    def _parsed(self, position: int, ending: bytes = b"") -> tuple[list[IndexLine], int]:
        """Return the whole lines from there on with this end, and the number of bytes read."""
        data = self._files.read(self._path, position, CHUNK)
        end = data.rfind(b"\n") + 1
        found = (parse(line) for line in data[:end].splitlines() if line.endswith(ending))
        return [line for line in found if line is not None], end


class _Round:
    """The files of one round."""

    def __init__(self, directory: Path, number: int, wanted: LineFilter, files: _OpenFiles) -> None:
        self._directory = directory
        self.number = number
        self._wanted = wanted
        self._opened = files
        self._indexes: dict[str, _OutputIndex] = {}
        self._files: dict[str, _WorkerFile] = {}  # those that are wanted
        self.ranks: set[int] = set()  # all that have files
        self.nodes: set[str] = set()  # all that have an index

    def begin(self) -> float:
        """Return a time before which the round has no line."""
        if self._indexes:
            return min(index.begun.time for index in self._indexes.values())
        names = self._names()
        indexes = [self._directory / name for name in names if INDEXES.fullmatch(name)]
        if indexes:
            return min(_OutputIndex(path, self._opened).begun.time for path in indexes)
        paths = [self._directory / name for name in names if FILES.fullmatch(name)]
        return min(filter(None, map(_changed, paths)), default=0.0)

    @property
    def begun_last(self) -> float:
        """Return the latest start in its indexes, as far as they were read; 0 without an index."""
        return max((index.begun.time for index in self._indexes.values()), default=0.0)

    @property
    def index_size(self) -> int:
        """Return the size of its first index, which most launches in this directory write."""
        return next((index.size for index in self._indexes.values()), 0)

    def lines(self, *, final: bool) -> Iterator[OutputLine]:
        """Yield what is new. `final`: nothing more will be written."""
        self._look()
        node, since = self._wanted.node, self._wanted.since
        chosen = [each for each in self._indexes.values() if node in ("", each.begun.host)]
        yield from merged((each.begun.time, each.lines(self._files.get, since)) for each in chosen)
        if self._indexes and not final:
            return
        if since > -math.inf:
            self._find_offsets(chosen)
        files = [file for file in self._files.values() if not node or file.begun is not None]
        for file in sorted(files, key=lambda f: (_changed(f.path) if f.begun else 0.0, f.order)):
            yield from file.rest(final=final)

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._directory))
        except OSError:
            return []  # the directory was removed

    def _look(self) -> None:
        names = self._names()
        streams = {found[0]: int(found[1]) for name in names if (found := FILES.fullmatch(name))}
        for name, rank in streams.items():
            is_errors = name.endswith("err") or self._holds_both_streams(name, streams)
            self._find(name, rank, is_errors)
        for name in names:
            if INDEXES.fullmatch(name) and name not in self._indexes:
                self._add(name)

    def _holds_both_streams(self, name: str, streams: Collection[str]) -> bool:
        """Return whether a file of standard output holds standard error as well. All files of a
        rank are made before it writes: once this one has content, no other one will follow.
        """
        has_errors = name.replace(".out", ".err") in streams
        return not has_errors and size(self._directory / name) > 0

    def _find(self, name: str, rank: int, is_errors: bool) -> None:
        self.ranks.add(rank)
        wanted = self._wanted
        if wanted.ranks is not None and rank not in wanted.ranks:
            return
        if wanted.errors_only and not is_errors:
            return
        if name not in self._files:
            offset = 0 if wanted.since == -math.inf else None
            order = 2 * rank + is_errors
            path = self._directory / name
            self._files[name] = _WorkerFile(path, rank, order, self._opened, offset)

    def _add(self, name: str) -> None:
        index = _OutputIndex(self._directory / name, self._opened)
        if not index.begun.host:
            return  # its first line is about to be written
        self._indexes[name] = index
        self.nodes.add(index.begun.host)
        if self._wanted.since > -math.inf:
            index.skip_to(self._wanted.since)
        for line in index.emptied():
            if isinstance(line, FileGrowth) and (file := self._files.get(line.name)):
                file.emptied = max(file.emptied, line.time)

    def _find_offsets(self, indexes: Sequence[_OutputIndex]) -> None:
        """Find where to begin in files that the indexes do not mention after the wanted time."""
        since = self._wanted.since
        unknown = {name: file for name, file in self._files.items() if file.offset is None}
        changed = {name: file for name, file in unknown.items() if _changed(file.path) >= since}
        for index in indexes if changed else ():
            begun = index.begun
            for line in index.everything():
                if isinstance(line, IndexBegun):
                    begun = line
                elif isinstance(line, FileGrowth) and (file := changed.get(line.name)):
                    file.begun, file.offset = begun, line.begin + line.length
        for file in unknown.values():
            if file.offset is None:
                file.skip_to_the_last(since)


class JobOutput:
    """The output of all rounds of some launches. Call `look` each time before `lines`."""

    def __init__(self, wanted: LineFilter) -> None:
        self._wanted = wanted
        self._opened = _OpenFiles()
        self._rounds: dict[Path, _Round] = {}  # those that are not over
        self._over: dict[Path, tuple[_Round, int]] = {}  # with the size of its index then
        self.ranks: set[int] = set()  # of all files so far, wanted or not
        self.nodes: set[str] = set()

    @property
    def is_there(self) -> bool:
        """Return whether any round has begun."""
        return bool(self._rounds or self._over)

    @property
    def refused(self) -> OSError | None:
        """Return why a file could not be read; None if all could."""
        return self._opened.refused

    def look(self, directories: Iterable[Path]) -> None:
        """Look for rounds that have begun. Raises OSError for a directory that cannot be read."""
        for directory in directories:
            for number, path in rounds(directory).items():
                if path in self._over:
                    over, size_then = self._over[path]
                    if over.index_size != size_then:  # another launch has begun there
                        del self._over[path]
                        self._rounds[path] = over
                elif path not in self._rounds:
                    self._rounds[path] = _Round(path, number, self._wanted, self._opened)

    def lines(self, *, final: bool) -> Iterator[OutputLine]:
        """Yield what is new, by time. `final`: nothing more will be written."""
        yield from merged(
            (each.begin(), self._lines_of(path, final=final)) for path, each in self._rounds.items()
        )
        for path in self._superseded():
            yield from self._lines_of(path, final=True)

    def _lines_of(self, path: Path, *, final: bool) -> Iterator[OutputLine]:
        found = self._rounds[path]
        yield from found.lines(final=final)
        self.ranks |= found.ranks
        self.nodes |= found.nodes
        if final:
            del self._rounds[path]
            self._over[path] = found, found.index_size

    def _superseded(self) -> list[Path]:
        """Return the rounds after which another one has begun in the same directory.

        The newest round does not always have the highest number: a launch may use the directory of
        an earlier one. But a round with a higher number and no index yet is about to begin.
        """
        newest: dict[Path, tuple[float, int]] = {}
        begun = {path: (each.begun_last, each.number) for path, each in self._rounds.items()}
        for path, found in begun.items():
            newest[path.parent] = max(found, newest.get(path.parent, found))
        return [
            path
            for path, (at, number) in begun.items()
            if (at, number) < newest[path.parent] and (at > 0 or number < newest[path.parent][1])
        ]
