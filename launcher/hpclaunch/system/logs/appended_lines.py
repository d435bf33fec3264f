"""Files to which an agent appends lines as long as it lives. The log service writes them: a hanging
file system may lose lines, but never delays the agent.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hpclaunch.core.protocol.model import HEAD

from .log_client import LogServiceClient

MOST = 16 << 20  # bytes that wait for the log service; lines beyond that are lost
CHUNK = 1 << 18  # bytes that it gets at once: messages to the user must not wait behind more


def name_of(kind: str, label: str) -> str:
    """Return KIND.jsonl for the first agent, and KIND-agent-LABEL.jsonl for the others."""
    return f"{kind}.jsonl" if label == str(HEAD) else f"{kind}-agent-{label}.jsonl"


class AppendedLines:
    """The lines of one file; without a directory they are dropped. `on_gap` is called with the
    number of lost lines, once there is room again.
    """

    def __init__(self, directory: Path | None, name: str, on_gap: Callable[[int], None]) -> None:
        self._directory, self._name, self._on_gap = directory, name, on_gap
        self._waiting = bytearray()
        self._lost = 0  # since the last gap that was noted

    def add(self, line: bytes) -> None:
        """Write a line, which ends with a newline."""
        if len(self._waiting) > MOST:
            self._lost += 1
        elif self._directory is not None:
            self._waiting += line

    def flush(self, service: LogServiceClient) -> None:
        """Send what the log service accepts at once. Call this at the end of each loop turn."""
        while self._waiting and not service.wanting:
            end = self._waiting.find(b"\n", CHUNK) + 1 or len(self._waiting)
            if not self._send(service, end):
                return
        self._note_gap(service)

    def finish(self, service: LogServiceClient) -> None:
        """Send the log service all remaining lines. Close the service after this."""
        while self._waiting:
            self._send(service, len(self._waiting), is_last=True)
            self._note_gap(service)

    def _note_gap(self, service: LogServiceClient) -> None:
        if self._directory is None:
            return
        self._lost += service.unwritten.pop(self._name, 0)
        if self._lost and not self._waiting:
            lost, self._lost = self._lost, 0
            self._on_gap(lost)

    def _send(self, service: LogServiceClient, end: int, *, is_last: bool = False) -> bool:
        """Return whether the log service has accepted the lines up to this byte."""
        assert self._directory is not None, "without one, no lines are waiting"
        text = self._waiting[:end].decode()
        is_accepted = service.append(self._directory, self._name, text, is_last=is_last)
        if is_accepted:
            del self._waiting[:end]
        return is_accepted
