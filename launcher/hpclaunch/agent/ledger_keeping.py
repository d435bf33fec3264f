"""The ledger of an agent that leads, which the log service writes whenever it has changed."""

from __future__ import annotations

import math
import time
from pathlib import Path

from ..core.control import Control
from ..core.ledger.book import Book, moved
from ..system.logs.log_client import LogServiceClient
from ..system.logs.log_directory import LEDGERS
from ..system.shared import packing

PERIOD = 30.0  # seconds, while nothing changes
PAUSE = 1.0  # seconds, where much does: a start and a restart are not to wait for it


class Ledger:
    def __init__(self, directory: Path | None, label: str, launch: str) -> None:
        self._directory = directory
        self._name = LEDGERS.name(label, time.time())
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

    def write(self, control: Control, service: LogServiceClient, now: float) -> None:
        self._write(control, service, now, over=False)

    def finish(self, control: Control, service: LogServiceClient, now: float) -> None:
        """Write the ledger for the last time and, where this agent leads, the report."""
        book = self._write(control, service, now, over=True)
        if self._directory is None or not control.leads:
            return
        text = ""
        if book is not None:
            # Imported here, where nearly all of it is there already, and not by the log service.
            from ..core.ledger.job_report import report
            from ..system.logs import ledger_files

            own = ledger_files.ended(self._launch, book, self.allocated)
            text = ledger_files.to_json(report([own]))
        service.report(self._directory, self._launch, ledger=self._name, alone=text)

    def _write(
        self, control: Control, service: LogServiceClient, now: float, *, over: bool
    ) -> Book | None:
        """Return the book as it is written; None if none is."""
        self._written_at, self._write_at = now, math.inf
        book = control.book(now)
        if self._directory is None or book is None:
            return None
        from ..system.logs import ledger_files  # no start of an agent pays for it

        book = ledger_files.in_real_time(book, time.time() - now)
        text = ledger_files.text(book, launch=self._launch, allocated=self.allocated, over=over)
        service.keep(self._directory, {self._name: text})
        self._write_at = now + PERIOD
        if control.lacks_books:  # an answer may be lost with the process: it is asked again
            service.read_books(self._directory, self._launch, control.tenure)
        return book

    def take_books(self, control: Control, term: int, packed: str, now: float) -> None:
        """What the log service has read."""
        control.take_books(term, moved(packing.unpack(packed.encode(), Book), now - time.time()))

    def of_launch(self, control: Control, now: float) -> str:
        """The launch with the books of all its heads, packed; "" if they are not known here."""
        from ..core.ledger.summing import Launch
        from ..system.logs import ledger_files

        ahead = time.time() - now
        books = tuple(ledger_files.in_real_time(book, ahead) for book in control.books(now))
        return packing.pack(Launch(self._launch, books, self.allocated)).decode() if books else ""
