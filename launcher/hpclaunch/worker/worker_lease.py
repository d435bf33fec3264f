"""The worker lease: until when the workers of a node may run without orders of the head.

At its end (on the monotonic clock) everything that runs is held with SIGSTOP, whatever the agent
does: the other nodes may be about to continue without this one. If they do not, because the whole
job was suspended or only the network was down, a new lease lets the workers continue.
"""

from __future__ import annotations

import math
import signal
import time

from .processes import signal_all
from .workers import Workers

HOLD = 0.5  # seconds after which everything that is held is stopped once more


class WorkerLease:
    """A lease, also across rounds: once it is over, workers only start after the head renews it."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._until = math.inf
        self._ended = False  # its end was acted upon in this round, or no worker is left to hold
        self.holds = False  # workers are held, or were not started yet, because it is over

    def keep(self, until: float) -> bool:
        """Let workers run until this time. Return whether some that were held continue."""
        self._until = until
        if self.is_over:
            return False
        self._ended = False
        held, self.holds = self.holds, False
        if held:
            signal_all(self._workers.descendants(), signal.SIGCONT)
        return held

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._until

    @property
    def is_due(self) -> bool:
        """Whether its end is to be acted upon."""
        return self.is_over and not (self._ended or self.holds)

    def due(self) -> float:
        """Return when its end is to be acted upon, or `stop_all` is to be called again."""
        if self.holds:
            return time.monotonic() + HOLD
        return math.inf if self._ended else self._until

    def begin_round(self) -> None:
        self._ended = False

    def hold(self) -> None:
        """Stop the workers and all below them."""
        self.holds = self._ended = True
        self._workers.signal_groups(signal.SIGSTOP)
        self.stop_all()

    def stop_all(self) -> None:
        """Stop whatever runs although it is held: somebody else may make processes continue, as
        `scontrol resume` does."""
        held: set[int] = set()
        while self.holds and (running := self._workers.descendants() - held):
            signal_all(running, signal.SIGSTOP)
            held |= running

    def release(self) -> None:
        """Hold nothing in this round any longer: the workers are gone, or are being killed."""
        self.holds, self._ended = False, True
