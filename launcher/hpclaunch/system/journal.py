"""The journal: every event and effect of one agent, one JSON object per line, with its time.

The head's is `journal.jsonl`, the other agents' `journal-agent-<index>.jsonl`: one writer per
file, since appends of several nodes to one file are not atomic on a network file system.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec


class Journal:
    """Opened for appending, mode 0600. A full disk ends the journal, never the job."""

    def __init__(self, directory: Path, index: int) -> None:
        name = f"journal-agent-{index}.jsonl" if index else "journal.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(directory / name, flags, 0o600)
        self.failed: OSError | None = None

    def write(self, kind: str, now: float, name: str, value: Any) -> None:
        """`kind` is "event", "effect" or "note"; `now` the monotonic time the core was given."""
        if self.failed:
            return
        entry = {"time": time.time(), "now": now, kind: name, "with": value}
        try:
            os.write(self._fd, msgspec.json.encode(entry) + b"\n")
        except OSError as e:
            self.failed = e
