"""The console: the agent's standard output or error, written without ever waiting.

Text is held back while srun is stopped, a terminal is paused or a pipe is full. While `wanting`,
call `flush` when the descriptor is writable. If the console is gone (srun died), text is dropped.
If it is a file, text that does not fit on its disk is dropped, and a line says so later.

A terminal may have a live line below all else, which says what the job waits for. Other text takes
its place. Once a worker writes something, the live line stays hidden until that wait is over.
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
        self._drawn = b""  # the live line that is on the terminal
        self._is_hidden = False  # since a worker has written something
        self._lost = 0  # bytes that a full disk has not taken, since the last successful write
        self._why = ""
        try:
            self._may_block = not stat.S_ISREG(os.fstat(fd).st_mode)
            self.gone = False
        except OSError:  # the descriptor was closed at the start
            self.gone = True
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    @property
    def wanting(self) -> bool:
        """Return whether there is text to write once the descriptor is writable."""
        return bool(self._held) and not self.gone

    @property
    def room(self) -> int:
        """Return how many bytes may be written before the limit."""
        return max(0, LIMIT - len(self._held))

    def set_live(self, text: bytes) -> None:
        """Set the live line for the next `draw`; b"" for none."""
        self._live = text if self.is_terminal else b""
        if not text:
            self._is_hidden = False  # this wait is over

    def draw(self) -> None:
        """Draw the live line, if it does not interrupt another line."""
        wanted = b"" if self._is_hidden else self._live
        if wanted != self._drawn and self.at_line_start and not self._held and not self.gone:
            self._held += ERASE + wanted
            self._drawn = wanted
            self.flush()

    def write(self, data: bytes) -> None:
        """Write the output of a worker."""
        self._is_hidden = self._is_hidden or bool(data and self._live)
        self.say(data)

    def say(self, data: bytes) -> None:
        """Write a message of the launcher. The live line is drawn again below it."""
        if data and not self.gone:
            self._held += ERASE if self._drawn else b""
            self._drawn = b""
            self.at_line_start = data.endswith((b"\n", b"\r"))
            self._held += data
            self.flush()

    def flush(self) -> bool:
        """Write what the console accepts. Return whether it has accepted anything."""
        before = len(self._held)
        while self._held and not self.gone:
            if self._may_block and not self._poll.poll(0):
                break
            try:
                self._note_loss()
                written = os.write(self.fd, self._held[:PIECE])
                del self._held[:written]
            except BlockingIOError:
                break
            except OSError as e:
                self.gone = self._may_block
                self._lost += len(self._held)
                self._why = e.strerror or str(e)
                self._held.clear()
        return len(self._held) < before

    def _note_loss(self) -> None:
        """Write how much was lost, as a worker's own file says it. Raises OSError."""
        note = f"\nhpclaunch: {self._lost} bytes are lost here: {self._why}\n".encode()
        if self._lost and os.write(self.fd, note) == len(note):
            self._lost = 0


def consoles() -> dict[int, Console]:
    """Return the consoles by descriptor: only one if both are the same terminal, pipe or file."""
    errors = Console(2)
    return {1: errors if _is_one() else Console(1), 2: errors}


def _is_one() -> bool:
    try:
        output, errors = os.fstat(1), os.fstat(2)
    except OSError:  # closed at the start
        return False
    is_terminal = os.isatty(1) and os.isatty(2) and output.st_rdev == errors.st_rdev
    return is_terminal or os.path.samestat(output, errors)


def _without_waiting(fd: int) -> int:
    """Return a non-blocking descriptor for the same console, where possible.

    Making `fd` itself non-blocking would affect everybody who shares it, the user's shell included.
    """
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(f"/proc/self/fd/{fd}", flags)
    except OSError:  # a socket, or a terminal of another user
        return fd
