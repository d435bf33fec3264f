"""Signals as data: a handler only wakes the loop, which reads the signals from a descriptor."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable

from hpclaunch.core.protocol.model import END_SIGNALS, FORWARDED


class Signals:
    """A queue of the signals that this process receives. Its creator closes it."""

    def __init__(self, handled: Iterable[int] = ()) -> None:
        """`handled`: signals beyond those that are always handled."""
        self._all = {*END_SIGNALS, *FORWARDED, signal.SIGWINCH, *handled}
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for signum in self._all:
            # A signal that was ignored when we were started (nohup) stays ignored.
            if signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, lambda *_: None)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, exit codes would be lost

    def ignore(self) -> None:
        """Ignore all signals: after the verdict nothing may change the exit code, not even a signal
        while the interpreter exits. Only `wait_for_end` notices one of END_SIGNALS.

        Slurm may end the step as soon as the first agent leaves (KillOnBadExit).
        """
        # The kernel drops an ignored signal, unless it is blocked: then `wait_for_end` finds it.
        signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
        for signum in self._all:
            signal.signal(signum, signal.SIG_IGN)

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        return self._reader.fileno()

    def receive(self) -> list[int]:
        try:
            return list(self._reader.recv(512))
        except BlockingIOError:
            return []


def wait_for_end(seconds: float) -> None:
    """Wait up to so many seconds for one of END_SIGNALS, also one since `Signals.ignore`."""
    signal.sigtimedwait(END_SIGNALS, seconds)
