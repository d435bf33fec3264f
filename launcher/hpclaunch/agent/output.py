"""The workers' output as the console shows it, from their files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from ..core.placement.streams import Shown, Std
from ..core.protocol.model import Assignment
from ..core.protocol.wording import harmless
from ..system.logs.log_directory import index_of
from ..system.logs.messages import Prepare, StreamFile, TapTo
from ..worker.fork_server_messages import Worker
from .context import Context
from .logs import Done

CONSOLES = {Std.OUT: ("out", 1), Std.ERR: ("err", 2)}  # a stream's name and its descriptor


class Output:
    """Chooses which output of its workers an agent shows, and where. The log service shows it."""

    def __init__(self, context: Context) -> None:
        self.logs, config = context.logs, context.config
        self._streams, self._role = config.streams, config.role
        self._launch, self._label = config.allocation.name, config.allocation.label
        self._host = harmless(context.host)
        self._one_console = _are_one_place(1, 2)

    def terminals(self, part: Assignment) -> dict[int, list[str]]:
        """Return the streams of each rank that a terminal shows without a prefix."""
        found: dict[int, list[str]] = {}
        for offset in range(part.nproc):
            for stream, (kind, console) in CONSOLES.items():
                shown = self._streams.shown(part.first_local_rank + offset, stream)
                if shown is Shown.PLAIN and os.isatty(console):
                    found.setdefault(part.first_rank + offset, []).append(kind)
        return found

    def in_one_file(self, part: Assignment, workers: Sequence[Worker]) -> list[Worker]:
        """Return the workers, with one file for both streams where both go to the same console.

        Only a single file preserves the order of a worker's lines in its two streams.
        """
        if not self._one_console or any(map(self._streams.filters, CONSOLES)):
            return [*workers]
        found = []
        for local_rank, worker in enumerate(workers, start=part.first_local_rank):
            out, err = (self._streams.shown(local_rank, stream) for stream in CONSOLES)
            is_one = out is err and out is not Shown.HIDDEN
            found.append(worker.replaced(err=worker.out) if is_one else worker)
        return found

    @property
    def size(self) -> tuple[int, int]:
        """Return (rows, columns) of the terminal, or (0, 0) without one."""
        for _, console in CONSOLES.values():
            with contextlib.suppress(OSError):  # not a terminal, or it is gone
                columns, rows = os.get_terminal_size(console)
                return rows, columns
        return 0, 0

    def prepare(
        self,
        part: Assignment,
        workers: Sequence[Worker],
        directory: Path,
        *,
        errors: Sequence[str],
        store: Path,
        done: Done,
    ) -> None:
        """Have the log service make the directory and the files of a round, and show the workers'
        output as the user chose. It removes `errors` before. `done` is called with its answer.
        """
        # Lines of a single worker cannot mix with others, so its prompts are shown at once.
        at_once = part.local_world_size == 1 and os.isatty(1)
        files, duplicates = [], []
        for stream, (kind, console) in CONSOLES.items():
            needles = self._streams.filters(stream)
            matches = str(directory / f"filtered-agent-{self._label}.{kind}") if needles else ""
            duplicates += [matches] if needles else []
            for worker in workers:
                if stream is Std.ERR and worker.err == worker.out:
                    continue
                local_rank = part.first_local_rank + worker.rank - part.first_rank
                name = self._streams.prefix(
                    role=self._role, rank=worker.rank, local_rank=local_rank, host=self._host
                )
                shown = self._streams.shown(local_rank, stream)
                taps: list[TapTo] = []
                if shown is not Shown.HIDDEN:
                    prefix = name if shown is Shown.PREFIXED else ""
                    taps.append(TapTo(console, prefix, at_once=at_once))
                if matches:
                    taps.append(TapTo(matches, name, tuple(needles)))
                path = worker.out if stream is Std.OUT else worker.err
                files.append(StreamFile(path, tuple(taps)))
        request = Prepare(
            directory=str(directory),
            streams=tuple(files),
            duplicates=tuple(duplicates),
            errors=tuple(errors),
            store=str(store),
            index=str(directory / index_of(self._label)),
            launch=self._launch,
            host=self._host,
        )
        self.logs.prepare(request, done)


def _are_one_place(first: int, second: int) -> bool:
    """Return whether two descriptors are the same file, pipe or terminal, other than /dev/null."""
    try:
        found = os.fstat(first)
        return os.path.samestat(found, os.fstat(second)) and not os.path.samestat(
            found, os.stat(os.devnull)
        )
    except OSError:  # one of them is closed
        return False
