"""The ledger of an agent that leads, which the log service writes whenever it has changed."""

from __future__ import annotations

import math
import time
from pathlib import Path

from ..core.control import Control
from ..system.logs import ledger_files
from ..system.logs.log_client import LogServiceClient

PERIOD = 30.0  # seconds, while nothing changes
PAUSE = 1.0  # seconds, where much does: a start and a restart are not to wait for it


class Ledger:
    def __init__(self, directory: Path | None, label: str, launch: str) -> None:
        self._directory = directory
        self._name = ledger_files.name(label, time.time())
        self._launch = launch
        self.allocated: float | None = None  # since when Slurm's job has had its nodes
        self._changes = 0
        self._written_at = time.monotonic()
        self._write_at = math.inf

    def next_deadline(self) -> float:
        return self._write_at

    def keep(self, control: Control, service: LogServiceClient, now: float) -> None:
        """Call it after every turn of the loop."""
        if control.book_changes != self._changes:
            self._changes = control.book_changes
            self._write_at = min(self._write_at, self._written_at + PAUSE)
        if now >= self._write_at:
            self.write(control, service, now)

    def write(
        self, control: Control, service: LogServiceClient, now: float, *, over: bool = False
    ) -> None:
        self._written_at, self._write_at = now, math.inf
        if self._directory is not None and (text := self.text(control, now, over=over)):
            service.keep(self._directory, {self._name: text})
            self._write_at = now + PERIOD

    def text(self, control: Control, now: float, *, over: bool = False) -> str:
        """Of the file; "" if this agent does not lead."""
        book = control.book(now)
        if book is None:
            return ""
        return ledger_files.text(
            book, time.time() - now, launch=self._launch, allocated=self.allocated, over=over
        )
