"""The workers of a round: which of them live, and their descendants."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from .processes import catches, descendants, foreground, signal_all, to_group


class Workers:
    """A record of the workers, from the start of a round until nothing of it is left."""

    def __init__(self, others: Callable[[], set[int]]) -> None:
        """`others` returns the children of this process that are neither workers nor leftovers."""
        self.others = others
        self.is_running = False  # from the start of a round until everything of it is gone
        self.living: dict[int, int] = {}  # pid -> rank
        self.commands: dict[int, Sequence[str]] = {}  # pid -> command line, of all of the round

    def begin(self) -> None:
        self.is_running = True

    def end(self) -> None:
        self.is_running = False
        self.commands = {}

    def started(self, rank: int, pid: int, argv: Sequence[str]) -> None:
        self.living[pid], self.commands[pid] = rank, argv

    def ended(self, pid: int) -> int:
        """Return the rank of a worker that has ended."""
        return self.living.pop(pid)

    def pids(self) -> dict[int, int]:
        """Return {rank: pid} of the living workers."""
        return {rank: pid for pid, rank in self.living.items()}

    def descendants(self) -> set[int]:
        """Return all processes of the round: workers and their descendants."""
        return descendants(self.others())

    def pass_on(self, signum: int) -> list[int]:
        """Send a signal to the workers that handle it. Where one has no handler, and only waits for
        programs, as a shell does, those get it that do. Return the ranks of the others."""
        without = []
        for pid, rank in self.living.items():
            able = [each for each in foreground(pid, signum) if catches(each, signum)]
            signal_all(able, signum)
            if not able:
                without.append(rank)
        return without

    def signal_groups(self, signum: signal.Signals) -> None:
        """Send a signal to the process groups of the workers."""
        for pid in self.living:
            to_group(pid, signum)
