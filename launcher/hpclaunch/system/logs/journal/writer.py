"""The process that writes an agent's journal, so that no file system can stall the agent.

Lines come over a socket, each behind a mark. Beats are held back until there is news. The process
ends once the agent has ended, even by SIGKILL, after it has written what it holds: so the last
minute before is in the journal. Its exit code is the errno of the file system, should that be why.
Standard library only.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable

from hpclaunch.worker import private_files

BEATS = b"."
NEWS = b"!"
STATE = b"="  # that the beats after it may begin with
NEEDED = b"#"  # the same, and some lines before it were lost
MOST = 64 << 20  # bytes of a file; then it is put aside as FILE.1, in place of the last such


class Holding:
    """Which lines are to be written, and when. Two stretches are held at most, each with the state
    that it begins with, so that at least the newer one is whole when there is news.
    """

    def __init__(self) -> None:
        self._held: list[list[bytes]] | None = None  # None: what comes is written at once
        self._news = True  # since the last state

    def take(self, line: bytes) -> list[bytes]:
        """What is to be written now."""
        mark, text = line[:1], line[1:]
        if mark == STATE:
            quiet, self._news = not self._news, False
            if quiet:
                self._held = [*(self._held or [])[-1:], [text]]
            return []
        if mark == NEEDED:
            self._held = None
        elif mark == BEATS and self._held is not None:
            self._held[-1].append(text)
            return []
        self._news = True if mark != BEATS else self._news
        return [*self.rest(), text]

    def rest(self) -> list[bytes]:
        """What is held. A state in the middle says nothing new."""
        held, self._held = self._held or [], None
        return [text for i, stretch in enumerate(held) for text in stretch[1 if i else 0 :]]


class File:
    """Opened for appending, mode 0600. Raises OSError."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = self._size = -1
        self._open()

    def write(self, lines: Iterable[bytes]) -> None:
        data = memoryview(b"".join(lines))
        self._size += len(data)
        while data:
            data = data[os.write(self._fd, data) :]

    @property
    def full(self) -> bool:
        return self._size >= MOST

    def put_aside(self) -> None:
        os.close(self._fd)
        os.replace(self.path, f"{self.path}.1")
        self._open()

    def _open(self) -> None:
        self._fd = private_files.open_file(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._size = os.fstat(self._fd).st_size
        # An earlier run may have ended with its node, in the middle of a line.
        if self._size and os.pread(self._fd, 1, self._size - 1) != b"\n":
            self.write([b"\n"])


def main(fd: str, _blocked: str, path: str) -> None:
    try:
        _write(socket.socket(fileno=int(fd)), path)
    except OSError as e:
        sys.exit(e.errno)


def _write(agent: socket.socket, path: str) -> None:
    file, holding = File(path), Holding()
    with agent, agent.makefile("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                break  # the agent was killed as it wrote this
            if line[:1] in (STATE, NEEDED) and file.full:
                file.write(holding.rest())
                file.put_aside()
                file.write([line[1:]])
                holding = Holding()
            elif new := holding.take(line):
                file.write(new)
    file.write(holding.rest())
