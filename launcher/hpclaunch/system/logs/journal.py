"""The journal: every event and effect of one agent, one JSON object per line, with its time.

The head's is `journal.jsonl`, the other agents' `journal-agent-<label>.jsonl`: one writer per
file, since appends of several nodes to one file are not atomic on a network file system.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

from hpclaunch.core.protocol.effects import Effect, KeepWorkers, Send
from hpclaunch.core.protocol.events import Event, Received, Tick
from hpclaunch.core.protocol.model import HEAD

from ..shared import packing


class Journal:
    """Opened for appending, mode 0600; without a directory nothing is written.

    A full disk ends the journal, never the job.
    """

    def __init__(self, directory: Path | None, label: str) -> None:
        self._fd: int | None = None
        self._complaint = ""
        self._told: dict[tuple[str, int], tuple[object, ...]] = {}  # the last news of each agent
        if directory is None:
            return
        name = "journal.jsonl" if label == str(HEAD) else f"journal-agent-{label}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._fd = os.open(directory / name, flags, 0o600)
        except OSError as e:
            self._give_up(e)

    def record(self, kind: Literal["event", "effect"], now: float, value: Event | Effect) -> None:
        """`now` is the monotonic time that the core was given.

        Ticks and beats without news are left out: they would be nearly all of it.
        """
        if isinstance(value, Tick | KeepWorkers):
            return
        if isinstance(value, Received | Send):
            key = (kind, value.sender if isinstance(value, Received) else value.to)
            if self._told.get(key) == value.message.news:
                return
            self._told[key] = value.message.news
        self._write(kind, type(value).__name__, now, value)

    def note(self, name: str, now: float, value: Any) -> None:
        """Something that is neither an event nor an effect."""
        self._write("note", name, now, value)

    def complaint(self) -> str:
        """Why the journal has ended: returned once, otherwise ""."""
        complaint, self._complaint = self._complaint, ""
        return complaint

    def _write(self, kind: str, name: str, now: float, value: Any) -> None:
        if self._fd is None:
            return
        entry = {"time": time.time(), "now": now, kind: name, "with": value}
        try:
            os.write(self._fd, packing.to_json(entry) + b"\n")
        except OSError as e:
            self._give_up(e)

    def _give_up(self, error: OSError) -> None:
        self._fd = None
        self._complaint = f"the journal ends here: {error.strerror}"
