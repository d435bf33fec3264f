"""The streams of workers that are not files: terminals and pipes.

A worker whose output the user watches on a terminal has a pseudo-terminal: a script that asks
whether it writes to one, and how wide it is, gets the same answer as without a launcher. A program
that is not Python has pipes: shell scripts open /dev/stderr for writing, which would truncate a
file.

A separate process, the copier, copies what is written there to the worker's file, unchanged. It
depends on no other process: a stopped launcher holds up no worker, and what is in a stream when the
launcher or the fork server is killed still reaches the file. It ends once all streams are closed.
"""

import contextlib
import os
import select
import signal
import socket
import time
from typing import Any

from .json_lines import JsonLines
from .private_files import open_file

CHUNK = 1 << 16
MOST = 1 << 20  # bytes copied from a stream at a flush: more than its buffer holds
LINGER = 10.0  # seconds that copying goes on for processes that outlive their fork server


class Terminals:
    """The fork server's side. It keeps a worker's streams open until the worker has ended."""

    def __init__(self):
        self.pid = 0  # of the process that copies
        self._channel: Any = None
        self._open = {}  # rank -> our descriptors of its streams

    def fileno(self):
        """Readable once a flush is done, or the process that copies is gone; -1 without one."""
        return -1 if self._channel is None else self._channel.fileno()

    def give(self, workers, wanted, size, *, pipes):
        """Replace files by terminals: `wanted` has "out", "err" or both for a rank, and `size` is
        (rows, columns). With `pipes`, replace all other files by pipes."""
        for worker in workers:
            rank, streams = worker["rank"], {}  # file -> its stream; both may have the same file
            for kind in ("out", "err"):
                file = worker[kind]
                with contextlib.suppress(OSError):  # no more can be opened: the file remains
                    if file not in streams and kind in wanted.get(str(rank), ()):
                        streams[file] = self._open_stream(
                            rank, file, os.openpty(), lambda fd: _prepare_terminal(fd, size)
                        )
                    elif file not in streams and pipes:
                        streams[file] = self._open_stream(rank, file, os.pipe(), int)
                worker[kind] = streams.get(file, file)

    def _open_stream(self, rank, file, ends, prepare):
        """Have what comes out of one end copied to the file; return what `prepare` makes of the
        other end: the name or the descriptor to which the worker writes."""
        ours, theirs = ends
        try:
            stream = prepare(theirs)
            self._ask([ours], file=file)
        except BaseException:
            os.close(theirs)
            raise
        finally:
            os.close(ours)
        self._open.setdefault(rank, []).append(theirs)
        return stream

    def resize(self, size):
        """Set the size of all terminals. Return the ranks that have one."""
        terminals = [(rank, fd) for rank, fds in self._open.items() for fd in fds if os.isatty(fd)]
        for _, fd in terminals:
            _set_size(fd, size)
        return {rank for rank, _ in terminals}

    def flush(self, rank=None):
        """Have all that was written so far copied to the files; True if that is to be waited for.

        The worker of this `rank` has ended, or all workers have.
        """
        for ended in [*self._open] if rank is None else [rank]:
            for fd in self._open.pop(ended, ()):
                os.close(fd)
        if self._channel is None:
            return False
        try:
            self._ask([])
        except OSError:
            return False  # the process that copies is gone; fileno() tells
        return True

    def flushed(self):
        """How many flushes are done; None if the process that copies is gone."""
        try:
            return len(self._channel.receive())
        except (EOFError, OSError):
            return None

    def close(self):
        """Make no further requests. The copier still copies what is left in the streams."""
        if self._channel is not None:
            self._channel.close()
        self._channel = None

    def _ask(self, fds, **request):
        if self._channel is None:
            self._start()
        self._channel.send(request, fds)

    def _start(self):
        ours, theirs = socket.socketpair()
        self._channel = JsonLines(ours)
        self.pid = os.fork()
        if not self.pid:
            try:
                _become_copier(theirs)
            finally:
                os._exit(0)
        theirs.close()


def _prepare_terminal(fd, size):
    """Return its name."""
    import termios

    modes = termios.tcgetattr(fd)
    modes[1] &= ~termios.OPOST  # what is written is what is read, line ends included
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSANOW, modes)
    _set_size(fd, size)
    return os.ttyname(fd)


def _set_size(fd, size):
    import fcntl
    import struct
    import termios

    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))


def _become_copier(channel):
    """In a fork of the fork server, from which nothing is kept."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    mine = channel.fileno()
    os.closerange(3, mine)
    os.closerange(mine + 1, os.sysconf("SC_OPEN_MAX"))
    Copier(channel).run()


class Copier:
    """The copier, which runs until neither streams nor the fork server are left."""

    def __init__(self, channel):
        self._channel: Any = JsonLines(channel)  # None once the fork server is gone
        self._files = {}  # our end of a stream -> descriptor of its file
        self._end = None  # of this process at the latest, once the fork server is gone

    def run(self):
        while self._channel is not None or self._files:
            ready = self._wait()
            for stream in [fd for fd in self._files if fd in ready]:
                self._copy(stream, CHUNK)
            if self._channel is not None and self._channel.fileno() in ready:
                try:
                    for request in self._channel.receive():
                        self._do(request)
                except EOFError:
                    self._channel, self._end = None, time.monotonic() + LINGER

    def _wait(self):
        poll = select.poll()
        for fd in self._files:
            poll.register(fd, select.POLLIN)
        if self._channel is not None:
            poll.register(self._channel, select.POLLIN)
        left = None if self._end is None else max(0, 1000 * (self._end - time.monotonic()))
        if left == 0:
            os._exit(0)
        return {fd for fd, _ in poll.poll(left)}

    def _do(self, request):
        if "file" in request:
            stream = self._channel.descriptors.pop(0)
            os.set_blocking(stream, False)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._files[stream] = open_file(request["file"], flags)
            return
        for stream in [*self._files]:
            self._copy(stream, MOST)
        with contextlib.suppress(OSError):
            self._channel.send({"flushed": True})

    def _copy(self, stream, most):
        """At most so many bytes. What cannot be written to the file is lost: nobody waits."""
        while most > 0:
            try:
                data = os.read(stream, CHUNK)
            except BlockingIOError:
                return
            except OSError:  # no process has this terminal open any more
                data = b""
            if not data:
                os.close(stream)
                os.close(self._files.pop(stream))
                return
            most -= len(data)
            with contextlib.suppress(OSError):
                while data:
                    data = data[os.write(self._files[stream], data) :]
