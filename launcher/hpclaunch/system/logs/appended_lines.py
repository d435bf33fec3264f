"""A file of lines that an agent appends to for as long as it lives: the log service writes them.

A file system that hangs costs some lines, never time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hpclaunch.core.protocol.model import HEAD

from .log_client import LogServiceClient

MOST = 16 << 20  # bytes that wait for the log service; lines beyond that are lost
CHUNK = 1 << 18  # bytes that it gets at once: what the agent says to the user has to come through


def name_of(kind: str, label: str) -> str:
    """Return the name of such a file: KIND.jsonl of the first agent, KIND-agent-LABEL.jsonl of the
    others.
    """
    return f"{kind}.jsonl" if label == str(HEAD) else f"{kind}-agent-{label}.jsonl"


class AppendedLines:
    """`on_gap` is called with the number of lost lines, once there is room again."""

    def __init__(self, directory: Path, name: str, on_gap: Callable[[int], None]) -> None:
        self._directory, self._name, self._on_gap = directory, name, on_gap
        self._waiting = bytearray()
        self._lost = 0

    def add(self, line: bytes) -> None:
        """Have a line written, which ends with a newline."""
        if len(self._waiting) > MOST:
            self._lost += 1
        else:
            self._waiting += line

    def flush(self, service: LogServiceClient) -> None:
        """Give the log service what it takes without a wait. Call this at the end of each turn."""
        while self._waiting and not service.wanting:
            end = self._waiting.find(b"\n", CHUNK) + 1 or len(self._waiting)
            if not self._send(service, end):
                return
        self._note_gap()

    def finish(self, service: LogServiceClient) -> None:
        """Give the log service the rest, however much that is. Close the service after this."""
        while self._waiting:
            self._send(service, len(self._waiting), is_last=True)
            self._note_gap()

    def _note_gap(self) -> None:
        if self._lost and not self._waiting:
            lost, self._lost = self._lost, 0
            self._on_gap(lost)

    def _send(self, service: LogServiceClient, end: int, *, is_last: bool = False) -> bool:
        """Return whether the log service has accepted the lines up to this byte."""
        text = self._waiting[:end].decode()
        is_accepted = service.append(self._directory, self._name, text, is_last=is_last)
        if is_accepted:
            del self._waiting[:end]
        return is_accepted
