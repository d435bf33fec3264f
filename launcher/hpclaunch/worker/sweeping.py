"""How everything that this process has started is killed, so that nothing stays."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from .notice_board import NoticeBoard
from .processes import Wakeup, children, descendants, signal_all

SWEEP_LIMIT = 5.0  # seconds; what happens after that is up to the agent


class Sweeping:
    """Meanwhile the notice board answers whoever asks."""

    def __init__(self, board: NoticeBoard, wakeup: Wakeup, reap: Callable[[], None]) -> None:
        self._board = board
        self._wakeup = wakeup
        self._reap = reap

    def sweep(self, spared: Callable[[], set[int]]) -> None:
        """Send SIGKILL until no child is left but the `spared` ones.

        Grandchildren become children on the way. A process inside a hung system call cannot be
        killed; should it end after all, there is a SIGCHLD as ever.
        """
        limit = time.monotonic() + SWEEP_LIMIT
        while time.monotonic() < limit and (living := set(children()) - spared()):
            signal_all(living, signal.SIGKILL)
            self._wait()

    def leave(self, copier: Callable[[], int], let_copier_end: Callable[[], None]) -> None:
        """Kill everything but the copier, the pid of which `copier` returns (0: none), and let that
        end by itself, if it does in time."""
        self.sweep(lambda: {copier()})
        let_copier_end()
        limit = time.monotonic() + SWEEP_LIMIT
        while copier() and time.monotonic() < limit:
            self._wait()
        signal_all(children(), signal.SIGKILL)
        while self._board.is_posted:
            self._board.serve(0.5)

    def _wait(self) -> None:
        self._board.serve(0.05, self._wakeup)
        self._wakeup.drain()
        self._reap()


def kill_all(spared: set[int]) -> None:
    """Kill whatever is found until nothing new is: from here on, no worker gets anything done."""
    killed: set[int] = set()
    while living := descendants(spared) - killed:
        signal_all(living, signal.SIGKILL)
        killed |= living
