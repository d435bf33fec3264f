"""Signals to this process, and helpers that were stopped by a signal."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from ..core.protocol import effects, events
from ..core.protocol.node_facts import ProcessContinued
from ..system.processes.signals import Signals
from ..system.shared.helper import StoppedHelpers
from .adapter import Adapter, Fd
from .context import Context

if TYPE_CHECKING:
    from .staging import Staging


class Signalling(Adapter):
    """Makes events of signals. Calls `resize` when the size of the terminal has changed."""

    def __init__(
        self,
        context: Context,
        signals: Signals,
        resize: Callable[[], None],
        staging: Staging | None,
    ) -> None:
        self._signals, self._resize, self._staging = signals, resize, staging
        record, host = context.record, context.host
        self._stopped = StoppedHelpers(lambda kind: record(ProcessContinued(host, kind)))

    def fds(self) -> Iterable[Fd]:
        return (self._signals.fileno(),)

    def deadline(self) -> float:
        return self._stopped.next_deadline()

    def ready(self, fds: Collection[Fd], now: float) -> Iterator[events.Event]:
        for signum in self._signals.receive() if self._signals.fileno() in fds else ():
            if signum == signal.SIGCHLD:
                self._stopped.look(now)
            elif signum == signal.SIGWINCH:
                self._resize()
            else:
                yield events.Signalled(signum)
                if self._staging is not None:
                    yield from self._staging.signalled(signum)

    def update(self, now: float) -> None:
        if now >= self._stopped.next_deadline():
            self._stopped.look(now)

    def conclude(self, end: effects.Exit) -> None:
        self._signals.ignore()
