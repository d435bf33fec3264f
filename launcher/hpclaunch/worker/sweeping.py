"""The sweep, which kills everything that this process has started."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from .notice_board import NoticeBoard
from .processes import Wakeup, children, descendants, signal_all
from .terminals import Terminals

SWEEP_LIMIT = 5.0  # seconds; what happens after that is up to the agent


class Sweeping:
    """The killing of processes, while the notice board answers questions."""

    def __init__(self, board: NoticeBoard, wakeup: Wakeup, reap: Callable[[], None]) -> None:
        self._board = board
        self._wakeup = wakeup
        self._reap = reap

    def sweep(self, spared: Callable[[], set[int]]) -> None:
        """Send SIGKILL until only the `spared` children are left, for SWEEP_LIMIT at most.

        Grandchildren become children on the way. A process in a hung system call cannot be killed;
        if it ends after all, there is a SIGCHLD as for any other.
        """
        limit = time.monotonic() + SWEEP_LIMIT
        while time.monotonic() < limit and (living := set(children()) - spared()):
            signal_all(living, signal.SIGKILL)
            self._wait()

    def leave(self, terminals: Terminals) -> None:
        """Kill everything except the copier, and let that end by itself, if it does in time."""
        self.sweep(lambda: {terminals.pid})
        terminals.close()
        limit = time.monotonic() + SWEEP_LIMIT
        while terminals.pid and time.monotonic() < limit:
            self._wait()
        signal_all(children(), signal.SIGKILL)
        while self._board.is_posted:
            self._board.serve(0.5)

    def _wait(self) -> None:
        self._board.serve(0.05, self._wakeup)
        self._wakeup.drain()
        self._reap()


def kill_all(spared: set[int]) -> None:
    """Kill all descendants until no new ones are found: no worker does anything from then on."""
    killed: set[int] = set()
    while living := descendants(spared) - killed:
        signal_all(living, signal.SIGKILL)
        killed |= living
