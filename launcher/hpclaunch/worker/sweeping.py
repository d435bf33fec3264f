"""The killing of everything that this process has started."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from .processes import children, descendants, signal_all

SWEEP_LIMIT = 5.0  # seconds; what happens after that is up to the agent


def sweep(spared: Callable[[], set[int]], wait: Callable[[], None]) -> None:
    """Send SIGKILL until only the `spared` children are left, for SWEEP_LIMIT at most. `wait` waits
    for a moment, and then reaps the children that have ended.

    Grandchildren become children on the way. A process in a hung system call cannot be killed; if
    it ends after all, there is a SIGCHLD as for any other.
    """
    limit = time.monotonic() + SWEEP_LIMIT
    while time.monotonic() < limit and (living := set(children()) - spared()):
        signal_all(living, signal.SIGKILL)
        wait()


def kill_all(spared: set[int]) -> None:
    """Kill all descendants until no new ones are found: no worker does anything from then on."""
    killed: set[int] = set()
    while living := descendants(spared) - killed:
        signal_all(living, signal.SIGKILL)
        killed |= living
