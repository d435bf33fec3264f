"""The console: the agent's standard output or error, written without ever waiting.

When srun is stopped, a terminal paused or a pipe full, text is held back up to a limit; `wanting`
and `flush` are for the time when there is room again. A console that is gone (srun died) swallows
everything.

A terminal may have a live line below all else, which says what the job waits for. Whatever is
written takes its place; once a worker has written something, it does not come back in that wait.
"""

from __future__ import annotations

import os
import select
import stat

LIMIT = 1 << 18  # bytes held back
ERASE = b"\r\x1b[K"  # the line that the cursor is in
PIECE = select.PIPE_BUF  # bytes that a pipe or socket takes without blocking once it is writable


class Console:
    def __init__(self, fd: int) -> None:
        self.fd = _without_waiting(fd)
        self._held = bytearray()
        self.is_terminal = os.isatty(fd)
        self.at_line_start = True  # the last text ended a line
        self._live = b""
        self._drawn = b""  # the live line, as far as it is there
        self._is_hidden = False  # since a worker has written something
        try:
            self._may_block = not stat.S_ISREG(os.fstat(fd).st_mode)
            self.gone = False
        except OSError:  # started with it closed
            self.gone = True
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    @property
    def wanting(self) -> bool:
        """Whether there is text to write once the descriptor is writable."""
        return bool(self._held) and not self.gone

    @property
    def room(self) -> int:
        """How many bytes may be written before the limit."""
        return max(0, LIMIT - len(self._held))

    def set_live(self, text: bytes) -> None:
        """Have this live line from the next `draw` on; b"" for none."""
        self._live = text if self.is_terminal else b""
        if not text:
            self._is_hidden = False  # this wait is over

    def draw(self) -> None:
        """Have the live line as it is wanted, where it does not get in the way of anything."""
        wanted = b"" if self._is_hidden else self._live
        if wanted != self._drawn and self.at_line_start and not self._held and not self.gone:
            self._held += ERASE + wanted
            self._drawn = wanted
            self.flush()

    def write(self, data: bytes) -> None:
        """What a worker has written."""
        self._is_hidden = self._is_hidden or bool(data and self._live)
        self.say(data)

    def say(self, data: bytes) -> None:
        """What the launcher says; the live line comes back below it."""
        if data and not self.gone:
            self._held += ERASE if self._drawn else b""
            self._drawn = b""
            self.at_line_start = data.endswith((b"\n", b"\r"))
            self._held += data
            self.flush()

    def flush(self, timeout: float = 0) -> None:
        """Write what the console takes; wait at most `timeout` seconds for it to take any."""
        while self._held and not self.gone:
            if self._may_block and not self._poll.poll(timeout * 1000):
                return
            try:
                written = os.write(self.fd, self._held[:PIECE])
            except BlockingIOError:
                return
            except OSError:
                self.gone = True
                self._held.clear()
                return
            del self._held[:written]


def consoles() -> dict[int, Console]:
    """By descriptor; if standard output and error are one terminal, they are one console, too."""
    errors = Console(2)
    return {1: errors if _is_one_terminal() else Console(1), 2: errors}


def _is_one_terminal() -> bool:
    return os.isatty(1) and os.isatty(2) and os.fstat(1).st_rdev == os.fstat(2).st_rdev


def _without_waiting(fd: int) -> int:
    """A non-blocking descriptor of our own for the same console, where possible.

    Making `fd` itself non-blocking would affect everybody who shares it, the user's shell included.
    """
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(f"/proc/self/fd/{fd}", flags)
    except OSError:  # a socket, or a terminal of another user
        return fd
