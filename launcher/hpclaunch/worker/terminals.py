"""The streams of workers that are not files: terminals and pipes.

A worker whose output the user watches on a terminal has a pseudo-terminal: a script that asks
whether it writes to a terminal, and how wide that is, gets the same answer as without a launcher. A
program that is not Python has pipes: shell scripts open /dev/stderr for writing, which would
truncate a file.

A separate process, the copier, copies their content to the worker's file, unchanged. It depends on
no other process: a stopped launcher delays no worker, and when the launcher or the fork server is
killed, the rest of a stream still reaches the file. It ends once all streams are closed, or LINGER
seconds after the fork server is gone.
"""

from __future__ import annotations

import collections
import contextlib
import math
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Container, Iterable, Mapping
from typing import NamedTuple, TypeAlias, TypedDict, get_args

from .fork_server_messages import Event, Worker
from .json_lines import JsonLines
from .messages import Kinds, Message, by_op, decode, never
from .private_files import open_file

CHUNK = 1 << 16
MOST = 1 << 20  # bytes copied from a stream at a flush: more than its buffer holds
FLUSH_LIMIT = 5.0  # seconds that an event waits for output to be in files
LINGER = 10.0  # seconds for which the copier continues after the fork server is gone

Size = tuple[int, ...]  # rows, columns


class Copy(Message):
    """Have the copier copy a stream to this file. Its descriptor is sent with this message."""

    file: str


class Flush(Message):
    """Have the copier copy all that is in the streams. Answered by Flushed."""


class Flushed(Message):
    """All that was in the streams is in the files."""


Request: TypeAlias = Copy | Flush
REQUESTS: Kinds[Request] = by_op(get_args(Request))


class Streams(TypedDict):
    """The streams of a worker: each is a file, the name of a terminal, or a pipe's descriptor."""

    out: str | int
    err: str | int


class Terminals:
    """The fork server's side. It keeps a worker's streams open until the worker has ended."""

    def __init__(self) -> None:
        self.pid = 0  # of the copier
        self._channel: JsonLines | None = None
        self._streams: dict[int, list[int]] = {}  # rank -> our descriptors of its streams

    def fileno(self) -> int:
        """Return a descriptor that is readable once a flush is done, or the copier is gone; -1
        without a copier."""
        return -1 if self._channel is None else self._channel.fileno()

    def open(
        self,
        workers: Iterable[Worker],
        wanted: Mapping[int, Container[str]],
        size: Size,
        *,
        pipes: bool,
    ) -> dict[int, Streams]:
        """Open terminals in place of files: `wanted` has "out", "err" or both for a rank. With
        `pipes`, open pipes in place of all other files. Return what each rank writes to."""
        return {
            worker.rank: self._open(worker, wanted.get(worker.rank, ()), size, pipes=pipes)
            for worker in workers
        }

    def _open(self, worker: Worker, wanted: Container[str], size: Size, *, pipes: bool) -> Streams:
        streams: dict[str, str | int] = {}  # by file; both may have the same
        for kind, file in (("out", worker.out), ("err", worker.err)):
            is_terminal = kind in wanted
            if file not in streams and (is_terminal or pipes):
                with contextlib.suppress(OSError):  # too many open files: the worker has the file
                    streams[file] = self._open_stream(
                        worker.rank, file, size if is_terminal else None
                    )
        out, err = (streams.get(file, file) for file in (worker.out, worker.err))
        return {"out": out, "err": err}

    def _open_stream(self, rank: int, file: str, size: Size | None) -> str | int:
        """Open a terminal of this size, or without a size a pipe, and have it copied to the file.
        Return the name of the terminal, or the descriptor of the pipe, to which the worker writes.
        """
        ours, theirs = os.pipe() if size is None else os.openpty()
        try:
            stream = theirs if size is None else _prepare_terminal(theirs, size)
            self._ask(Copy(file), ours)
        except BaseException:
            os.close(theirs)
            raise
        finally:
            os.close(ours)
        self._streams.setdefault(rank, []).append(theirs)
        return stream

    def resize(self, size: Size) -> set[int]:
        """Set the size of all terminals. Return the ranks that have one."""
        streams = ((rank, fd) for rank, fds in self._streams.items() for fd in fds)
        terminals = [(rank, fd) for rank, fd in streams if os.isatty(fd)]
        for _, fd in terminals:
            _set_size(fd, size)
        return {rank for rank, _ in terminals}

    def flush(self, rank: int | None = None) -> bool:
        """Have all output of a rank, which has ended, copied to its files; without a rank, of all
        ranks. Return whether this is to be waited for."""
        self._end_streams([*self._streams] if rank is None else [rank])
        if self._channel is None:
            return False
        try:
            self._ask(Flush())
        except OSError:
            return False  # the copier is gone, and fileno() is readable
        return True

    def flushed(self) -> int | None:
        """Return how many flushes are done; None if the copier is gone."""
        assert self._channel is not None, "fileno() has its descriptor"
        try:
            return len(self._channel.receive())
        except (EOFError, OSError):
            return None

    def ended(self) -> None:
        """Record that the copier has ended."""
        self.pid = 0

    def close(self) -> None:
        """Make no further requests. The copier still copies what is left in the streams, and ends
        once nobody has them open."""
        self._end_streams([*self._streams])
        if self._channel is not None:
            self._channel.close()
        self._channel = None

    def _end_streams(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            for fd in self._streams.pop(rank, ()):
                os.close(fd)

    def _ask(self, request: Request, *fds: int) -> None:
        if self._channel is None:
            self._channel = self._start()
        self._channel.send(request.encoded(), fds)

    def _start(self) -> JsonLines:
        ours, theirs = socket.socketpair()
        channel = JsonLines(ours)
        self.pid = os.fork()
        if not self.pid:
            try:
                _become_copier(theirs)
            finally:
                os._exit(0)
        theirs.close()
        return channel


class _KeptEvent(NamedTuple):
    """An event that waits for a flush."""

    event: Event
    flush: int  # the number of the flush
    limit: float  # when to send the event at the latest


class OrderedEvents:
    """A queue of events that must not arrive before the output that was written before them: the
    agent reads a worker's file when the worker has ended. Each event waits for a flush; flushes are
    done in their order."""

    def __init__(self, terminals: Terminals, report: Callable[[Event], None]) -> None:
        self._terminals = terminals
        self._report = report
        self._asked = self._done = 0  # how many flushes were asked for, and are done
        self._kept: collections.deque[_KeptEvent] = collections.deque()

    def add(self, event: Event, rank: int | None = None) -> None:
        """Send an event once all output of a rank (None: of every rank) is in files."""
        if self._terminals.flush(rank):
            self._asked += 1
            limit = time.monotonic() + FLUSH_LIMIT
            self._kept.append(_KeptEvent(event, self._asked, limit))
        else:
            self._flushed(self._asked)
            self._report(event)

    def due(self) -> float:
        """Return when the next event is sent at the latest."""
        return self._kept[0].limit if self._kept else math.inf

    def send_due(self) -> None:
        """Send the events that have waited too long."""
        while time.monotonic() >= self.due():
            self._report(self._kept.popleft().event)

    def hear_terminals(self) -> None:
        """Send the events that waited for a flush that is done."""
        done = self._terminals.flushed()
        if done is None:
            self._terminals.close()
        self._flushed(self._asked if done is None else self._done + done)

    def _flushed(self, done: int) -> None:
        """Send the events that waited for one of the first `done` flushes."""
        self._done = min(done, self._asked)  # a copier that is gone has left some undone
        while self._kept and self._kept[0].flush <= self._done:
            self._report(self._kept.popleft().event)


def _prepare_terminal(fd: int, size: Size) -> str:
    """Set the modes and the size of a terminal. Return its name."""
    import termios

    modes = termios.tcgetattr(fd)
    modes[1] &= ~termios.OPOST  # what is written is what is read, line ends included
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSANOW, modes)
    _set_size(fd, size)
    return os.ttyname(fd)


def _set_size(fd: int, size: Size) -> None:
    import fcntl
    import struct
    import termios

    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))


def _become_copier(channel: socket.socket) -> None:
    """Run as the copier in a fork of the fork server. Keep nothing of the fork server."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    # Not os.closerange: up to a high limit of open files, that takes minutes on some systems.
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != channel.fileno():
            with contextlib.suppress(OSError):  # the descriptor of this listing, closed by now
                os.close(fd)
    Copier(channel, console=2).run()


class Copier:
    """The copier. It runs until the fork server is gone, and either all streams are closed or
    LINGER seconds have passed. A stream whose file cannot be opened is copied to the console.
    """

    def __init__(self, channel: socket.socket, console: int) -> None:
        self._console = console
        self._channel: JsonLines | None = JsonLines(channel)  # None once the fork server is gone
        self._files: dict[int, int] = {}  # our end of a stream -> descriptor of its file
        self._lost: dict[int, int] = {}  # by file: bytes lost since the last successful write
        self._end = math.inf  # the time of its end, once the fork server is gone

    def run(self) -> None:
        while self._channel is not None or (self._files and time.monotonic() < self._end):
            ready = self._wait()
            for stream in [fd for fd in self._files if fd in ready]:
                self._copy(stream, CHUNK)
            if self._channel is not None and self._channel.fileno() in ready:
                try:
                    for raw in self._channel.receive():
                        self._do(self._channel, decode(REQUESTS, raw))
                except EOFError:
                    self._channel, self._end = None, time.monotonic() + LINGER
                    if self._console not in self._files.values():
                        os.close(self._console)  # nobody who reads it waits for this process

    def _wait(self) -> set[int]:
        poll = select.poll()
        for fd in self._files:
            poll.register(fd, select.POLLIN)
        if self._channel is not None:
            poll.register(self._channel, select.POLLIN)
        lives = self._channel is not None
        left = None if lives else max(0.0, 1000 * (self._end - time.monotonic()))
        return {fd for fd, _ in poll.poll(left)}

    def _do(self, channel: JsonLines, request: Request) -> None:
        match request:
            case Copy(file):
                stream = channel.descriptors.pop(0)
                os.set_blocking(stream, False)
                self._files[stream] = self._open(file)
            case Flush():
                for stream in [*self._files]:
                    self._copy(stream, MOST)
                with contextlib.suppress(OSError):
                    channel.send(Flushed().encoded())
            case _:
                never(request)

    def _open(self, file: str) -> int:
        """Return a descriptor of a file, or of the console after a message with the reason."""
        try:
            return open_file(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except OSError as e:
            text = f"hpclaunch: {file}: {e.strerror}: its lines are only shown here\n"
            with contextlib.suppress(OSError):
                os.write(self._console, text.encode(errors="surrogateescape"))
            return self._console

    def _copy(self, stream: int, most: int) -> None:
        """Copy at most so many bytes."""
        while most > 0:
            try:
                data = os.read(stream, CHUNK)
            except BlockingIOError:
                return
            except OSError:  # no process has this terminal open any longer
                data = b""
            if not data:
                os.close(stream)
                file = self._files.pop(stream)
                self._lost.pop(file, None)
                if file != self._console:
                    os.close(file)
                return
            most -= len(data)
            self._write(self._files[stream], data)

    def _write(self, file: int, data: bytes) -> None:
        """Write to a file. Data that does not fit is lost; once the file can be written again, a
        line there reports how much (as in `site/_hpclaunch_output.py`)."""
        lost = self._lost.pop(file, 0)
        try:
            if lost:
                note = b"\nhpclaunch: %d bytes are lost here\n" % lost
                lost = 0 if os.write(file, note) == len(note) else lost
            while data:
                data = data[os.write(file, data) :]
        except OSError:
            lost += len(data)
        if lost:
            self._lost[file] = lost
