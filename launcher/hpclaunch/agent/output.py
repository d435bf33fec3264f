"""The workers' output on its way to the user: the console shows what is in their files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from ..core.placement.streams import Shown, Std, Streams
from ..core.protocol.model import Assignment
from ..core.protocol.wording import for_console, harmless
from ..system.logs.console import Console
from ..system.logs.mirror import PARTIAL, Duplicates, Mirror, Tap
from ..system.processes.fork_server_client import Worker

STALLED = 10.0  # seconds to wait at the end for a console that takes nothing


class Output:
    """One agent's consoles, and the mirror that feeds them. Nothing waits for a console."""

    def __init__(self, streams: Streams, *, role: str, label: str, host: str) -> None:
        self.mirror = Mirror()
        self.out, self.err = Console(1), Console(2)
        self._streams = streams
        self._role = role
        self._label = label
        self._host = harmless(host)
        self._duplicates: list[Duplicates] = []  # those to which lines are still copied
        self._unsaid: list[str] = []  # complaints of those that ended early

    @property
    def wanting(self) -> list[Console]:
        """The consoles with text that they have not written yet."""
        return [console for console in (self.out, self.err) if console.wanting]

    def terminals(self, part: Assignment) -> dict[int, list[str]]:
        """For each rank of this agent, the streams that the user watches on a terminal."""
        if part.preflight:
            return {}
        found: dict[int, list[str]] = {}
        for offset in range(part.nproc):
            for stream, kind, console in self._kinds:
                shown = self._streams.shown(part.first_local_rank + offset, stream)
                if shown is Shown.PLAIN and console.is_terminal:
                    found.setdefault(part.first_rank + offset, []).append(kind)
        return found

    @property
    def size(self) -> tuple[int, int]:
        """(rows, columns) of the terminal; (0, 0), which means unknown, without one."""
        for console in (self.out, self.err):
            if console.is_terminal:
                with contextlib.suppress(OSError):  # it is gone
                    columns, rows = os.get_terminal_size(console.fd)
                    return rows, columns
        return 0, 0

    @property
    def _kinds(self) -> tuple[tuple[Std, str, Console], ...]:
        return (Std.OUT, "out", self.out), (Std.ERR, "err", self.err)

    def follow(self, part: Assignment, workers: Sequence[Worker], directory: Path) -> None:
        """Show what the workers of a round write: as the user chose, or for a preflight everything.
        The output of the last round is shown by now."""
        self.mirror.forget()
        self._release()
        streams = Streams() if part.preflight else self._streams
        # A single worker's lines cannot be torn, so its prompts are shown at once.
        patience = 0.0 if part.local_world_size == 1 and self.out.is_terminal else PARTIAL
        for stream, kind, console in self._kinds:
            words = tuple(os.fsencode(word) for word in streams.filters(stream))
            matches = None
            if words:
                matches = Duplicates(directory / f"filtered-agent-{self._label}.{kind}")
                self._duplicates.append(matches)
            for worker in workers:
                local_rank = part.first_local_rank + worker.rank - part.first_rank
                name = os.fsencode(
                    streams.prefix(
                        role=self._role, rank=worker.rank, local_rank=local_rank, host=self._host
                    )
                )
                shown = streams.shown(local_rank, stream)
                taps = []
                if shown is not Shown.HIDDEN:
                    prefix = name if shown is Shown.PREFIXED else b""
                    taps.append(Tap(console, prefix, patience=patience))
                if matches is not None:
                    taps.append(Tap(matches, name, words))
                path = worker.out if stream is Std.OUT else worker.err
                self.mirror.follow(path, *taps)

    def _release(self) -> None:
        """Close the duplicates of rounds that are shown completely: each restart opens two more."""
        over = [d for d in self._duplicates if not self.mirror.feeds(d)]
        for duplicates in over:
            duplicates.close()
            self._duplicates.remove(duplicates)
            self._unsaid += filter(None, [duplicates.complaint()])

    def say(self, text: str) -> None:
        """A line to the user, after all that the workers have written so far."""
        self.mirror.wake(time.monotonic())
        # A worker that died may have left its last line unfinished.
        start = b"" if self.err.at_line_start else b"\n"
        self.err.write(start + for_console(f"hpclaunch: {text}\n"))

    def complaints(self) -> list[str]:
        """What is no longer duplicated, and why; each complaint is returned once."""
        said, self._unsaid = self._unsaid, []
        return said + [text for d in self._duplicates if (text := d.complaint())]

    def drain(self) -> None:
        """Show everything, as long as the consoles take it."""
        while True:
            self.mirror.finish(time.monotonic())
            if not (wanting := self.wanting):
                return
            for console in wanting:
                held = console.room
                console.flush(STALLED)
                if console.wanting and console.room == held:
                    return  # nobody reads; every line is in the files

    def close(self) -> None:
        self.mirror.close()
        for duplicates in self._duplicates:
            duplicates.close()
