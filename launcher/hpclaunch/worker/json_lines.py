"""What the agent asks of a process that serves it, and what that tells: JSON, a line each."""

from __future__ import annotations

import json
import socket
from typing import Any


class AgentGoneError(Exception):
    """Nobody is left to ask or to be told."""


class Requests:
    def __init__(self, fd: str) -> None:
        self._socket = socket.socket(fileno=int(fd))
        self._socket.set_inheritable(False)  # it came by inheritance; no child may have it
        self._buffer = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self) -> list[dict[str, Any]]:
        """Those that have come; waits for some bytes."""
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError:  # it died without reading our last words
            data = b""
        if not data:
            raise AgentGoneError
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def tell(self, event: str, **fields: Any) -> None:
        try:
            self._socket.sendall(json.dumps({"event": event, **fields}).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            raise AgentGoneError from None
