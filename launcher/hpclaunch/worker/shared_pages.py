"""The memory and files that the workers of a round share with the fork server, on its side.

Only this process keeps them open; the workers open them by its descriptors. A broken worker may
write anything there, so what is read is checked here. `site/_hpclaunch_layout.py` has the layout.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from .site import _hpclaunch_layout as layout

LEVELS = 10  # of nested lists and objects; torch's recorder has 5
PHASES = (*layout.PHASES, "other")  # names, by `Slot.phase`
MOST_READS = 100  # of a slot that changes while it is read


class SharedPages:
    """The memory and files of all workers of a round."""

    def __init__(self, ranks: Sequence[int]) -> None:
        """Raises OSError if there are too many open files."""
        with contextlib.ExitStack() as stack:

            def opened(fd: int) -> int:
                stack.callback(os.close, fd)
                return fd

            slots, stacks, records = layout.NAMES
            memory = opened(os.memfd_create(slots))
            os.ftruncate(memory, max(1, len(ranks)) * layout.SLOT)
            mapped = memoryview(mmap.mmap(memory, 0))
            self.by_rank: dict[int, WorkerPage] = {}
            for number, rank in enumerate(ranks):
                files = opened(os.memfd_create(stacks)), opened(os.memfd_create(records))
                reading, writing = map(opened, os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
                place = layout.Place(os.getpid(), memory, number, files[0], reading, files[1])
                slot = mapped[number * layout.SLOT : (number + 1) * layout.SLOT]
                self.by_rank[rank] = WorkerPage(slot, rank, place, writing)
            self.close = stack.pop_all().close


class WorkerPage(layout.Slot):
    """The slot and the files of one worker, and the pipe for requests to it."""

    def __init__(self, memory: memoryview, rank: int, place: layout.Place, requests: int) -> None:
        super().__init__(memory)
        self.place = place
        self._requests = requests
        self.numbers[layout.STEP_OF_NOTICE] = layout.NEVER
        self.numbers[layout.RANK] = rank
        self.numbers[layout.STACKS] = place.stacks
        self.numbers[layout.ASKED_AT] = requests
        # The time before the worker starts counts as imports: the template imports for it.
        self.times[layout.SINCE] = time.monotonic()

    def spent(self, *, without_torch: int = layout.TRAINING) -> tuple[list[float], int]:
        """Return (the seconds spent on each of layout.SPENDING, what the worker does now).
        `without_torch` is what a worker does as long as it is not seen to use torch.
        """
        for _ in range(MOST_READS):
            since = self.seconds(layout.SINCE)
            spent = [self.seconds(layout.SPENT + i) for i in range(len(layout.SPENDING))]
            phase = self.phase
            if since == self.seconds(layout.SINCE):  # else it changes just now
                break
        doing = layout.counted_as(phase, spent[layout.MEETING])
        if self.number(layout.WORKER) and not self.number(layout.WRITER):
            doing = without_torch
        if doing != layout.UNCOUNTED:
            spent[doing] += time.monotonic() - since
        return spent, doing

    # Requests and answers

    def request(self, what: bytes) -> None:
        with contextlib.suppress(BlockingIOError):  # nobody answers there
            os.write(self._requests, what)

    def empty(self, *, stacks: bool) -> None:
        """Remove earlier answers; the stacks only with `stacks`."""
        os.ftruncate(self.place.records, 0)
        if stacks:
            os.ftruncate(self.place.stacks, 0)

    @property
    def size_of_answers(self) -> int:
        return sum(os.fstat(fd).st_size for fd in (self.place.stacks, self.place.records))

    def answer(self, name: str) -> dict[str, Any] | None:
        """Return the newest line of the records that has this name; None if there is none yet."""
        for line in reversed(os.pread(self.place.records, layout.MOST, 0).splitlines()):
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict) and name in found and is_shallow(found):
                return found
        return None


def is_shallow(value: object, levels: int = LEVELS) -> bool:
    """Return whether a value has few enough levels to be passed on as JSON."""
    parts: Iterable[object] = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    )
    return levels > 0 and all(is_shallow(part, levels - 1) for part in parts)
