"""The console: the agent's standard output or error, written without ever waiting.

When srun is stopped, a terminal paused or a pipe full, text is held back up to a limit; `wanting`
and `flush` are for the time when there is room again. A console that is gone (srun died) swallows
everything.
"""

from __future__ import annotations

import os
import select
import stat

LIMIT = 1 << 18  # bytes held back
PIECE = select.PIPE_BUF  # bytes that a pipe or socket takes without blocking once it is writable


class Console:
    def __init__(self, fd: int) -> None:
        self.fd = _without_waiting(fd)
        self._held = bytearray()
        self.is_terminal = os.isatty(fd)
        self.at_line_start = True  # the last text ended a line
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

    def write(self, data: bytes) -> None:
        if data and not self.gone:
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
