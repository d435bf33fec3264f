"""Child processes that somebody has stopped, as with SIGSTOP: they are made to continue.

Whoever asks such a process for something would wait for ever. Unlike its replacement by another
process, SIGCONT loses nothing.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterable

PATIENCE = 2.0  # seconds for which a child has to be stopped
PAUSE = 1.0  # seconds between two looks
LATE = 1.0  # seconds; a process that runs is not as late as this for a look


class StoppedChildren:
    """Call `look` after a SIGCHLD, and once `next_deadline` has come.

    If the job is suspended and resumed, this process is stopped and continues as well, before or
    after its children. So only the time counts in which this process ran.
    """

    def __init__(self) -> None:
        self._since: dict[int, float] = {}  # when each of them was first seen to be stopped
        self._due = math.inf

    def next_deadline(self) -> float:
        """On the clock of `look`."""
        return self._due

    def look(self, pids: Iterable[int], now: float) -> list[int]:
        """Continue those of these children that have been stopped for long enough: return them."""
        if now >= self._due + LATE:
            self._since.clear()
        self._since = {pid: self._since.get(pid, now) for pid in pids if is_stopped(pid)}
        continued = [pid for pid, since in self._since.items() if now >= since + PATIENCE]
        for pid in continued:
            del self._since[pid]
            os.kill(pid, signal.SIGCONT)  # it is a child that nobody has waited for: it is there
        self._due = now + PAUSE if self._since else math.inf
        return continued


def is_stopped(child: int) -> bool:
    try:
        found = os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return found is not None
