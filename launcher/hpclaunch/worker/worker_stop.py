"""The stop of the workers of a round: which processes get a signal, and which are killed.

The workers get the signal, but not the processes that they have started (`foreground` has an
exception): a worker may need them to save, such as those of a DataLoader. Once it has ended, the
rest of its process group is ended. Most leftovers of workers, such as Python's resource_tracker,
then clean up and end by themselves.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection

from .activity import Activity
from .processes import (
    Handlers,
    ancestry,
    command_line,
    exists,
    foreground,
    group_of,
    oldest_first,
    signal_all,
    take_pending,
)
from .workers import Workers

SENDING = 0.05  # seconds within which a signal reaches all processes of a node


class WorkerStop:
    """The stop of the workers. `begin_round` resets it."""

    def __init__(self, workers: Workers, handlers: Handlers) -> None:
        """`handlers` are those with which the workers begin."""
        self._workers = workers
        self._handlers = handlers
        self._activity = Activity()
        self._signalled: set[int] = set()  # the processes that got the signal
        self.is_asked_for = False

    def begin_round(self) -> None:
        self.is_asked_for = False
        self._signalled = set()

    def ask(self) -> None:
        """Record that the workers are to stop: none of them may start or continue."""
        self.is_asked_for = True

    def signal(self, signum: int) -> None:
        """Send the workers this signal."""
        workers = self._workers
        if self._handlers.get(signum) is signal.SIG_IGN:
            signum = signal.SIGTERM  # the workers ignore the other one, as after nohup
        self._signalled.update(*map(foreground, workers.living))
        if not _was_sent_to_all(signum):
            signal_all(self._signalled, signum)
        workers.signal_groups(signal.SIGCONT)
        self._end_groups(workers.commands.keys() - workers.living.keys())
        self._activity.begin(self._signalled, workers.others())

    def kill_idle(self) -> None:
        """Send SIGKILL to the workers that have done nothing since the signal, or the last call."""
        workers = self._workers
        for pid in self._activity.idle(self._signalled, workers.others()):
            signal_all(foreground(pid) if pid in workers.living else [-pid], signal.SIGKILL)

    def kill(self) -> None:
        """Send SIGKILL to the workers."""
        workers = self._workers
        mine = self._signalled | workers.living.keys()
        signal_all(workers.descendants() & mine, signal.SIGKILL)

    def ended(self, pid: int) -> None:
        """Clean up after a worker that has ended."""
        if self.is_asked_for:
            self._end_groups({pid})

    def is_for(self, pids: Collection[int]) -> bool:
        """Return whether one of these processes got the signal."""
        return not self._signalled.isdisjoint(pids)

    def _end_groups(self, groups: Collection[int]) -> None:
        """End the processes that ended workers leave in their process groups.

        Forks of a worker, such as the processes of a DataLoader, get SIGKILL: they have inherited
        the worker's signal handlers, which must not run there. Other programs get SIGTERM.
        """
        if not any(map(exists, groups)):
            return
        for pid in oldest_first(self._workers.descendants() - self._signalled):
            if (group := group_of(pid)) in groups:
                words = command_line(pid)
                is_fork = words == self._workers.commands[group][: len(words)]
                signal_all([pid], signal.SIGKILL if is_fork else signal.SIGTERM)


def _was_sent_to_all(signum: int) -> bool:
    """Return whether the workers have received this signal already, because it was sent to all
    processes of the step, as some clusters of Slurm and systemd do.

    Then this process has received it, too. A terminal or a shell sends a signal to a process group,
    and this process has its own.
    """
    if signum == signal.SIGTERM:
        return False  # it ends rounds as well, so a pending one may not be that of the job
    time.sleep(SENDING)
    return take_pending({signum}).get(signum) in ancestry(os.getppid())
