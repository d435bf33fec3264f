"""JSON objects over a stream socket, one per line. The agent and its helpers, the fork server and
its template, and the copier of terminals use it."""

from __future__ import annotations

import atexit
import json
import socket
from collections.abc import Iterator, Sequence
from typing import Any

CHUNK = 1 << 16
MOST_DESCRIPTORS = 16  # that one message brings along
PIECE = 800  # srun passes on lines of up to 1024 bytes whole; longer ones of two nodes may mix


def in_pieces(begin: str, text: str) -> Iterator[str]:
    """Yield a text in lines that srun passes on whole, each after `begin`."""
    for at in range(0, len(text), PIECE):
        yield f"{begin}{text[at : at + PIECE]}\n"


class JsonLines:
    """One end of a socket. A line may arrive in pieces, and several at once."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = b""
        self.descriptors: list[int] = []  # received with messages, for the caller to take out

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message. Raises OSError when the other end is closed."""
        data = json.dumps(message).encode() + b"\n"
        if descriptors:
            data = data[socket.send_fds(self._socket, [data], descriptors) :]
        self._socket.sendall(data)

    def receive(self) -> list[dict[str, Any]]:
        """Wait for some bytes, and return the messages that are complete. Raises EOFError when the
        other end is closed."""
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, CHUNK, MOST_DESCRIPTORS)
        except ConnectionResetError:  # it died without reading what was sent last
            data, fds = b"", []
        self.descriptors += fds
        if not data:
            raise EOFError
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._socket.close()


class AgentGoneError(Exception):
    """The agent has ended, or has closed its end."""


class AgentChannel(JsonLines):
    """A helper's end of the socket to its agent: it reads requests and sends events. It stays open
    until the helper ends."""

    def __init__(self, fd: str) -> None:
        end = socket.socket(fileno=int(fd))
        end.set_inheritable(False)  # it was inherited, but no child may have it
        atexit.register(end.close)
        super().__init__(end)

    def read(self) -> list[dict[str, Any]]:
        """Wait for some bytes, and return the requests that are complete."""
        try:
            return self.receive()
        except EOFError:
            raise AgentGoneError from None

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        try:
            super().send(message, descriptors)
        except (BrokenPipeError, ConnectionResetError):
            raise AgentGoneError from None
