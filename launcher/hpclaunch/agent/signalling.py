"""Signals to this process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from ..core.protocol import effects, events
from ..system.processes.signals import Signals
from .adapter import Adapter, Fd

if TYPE_CHECKING:
    from .staging import Staging


class Signalling(Adapter):
    """Makes events of signals. Calls `resize` when the size of the terminal has changed."""

    def __init__(
        self,
        signals: Signals,
        resize: Callable[[], None],
        staging: Staging | None,
    ) -> None:
        self._signals, self._resize, self._staging = signals, resize, staging

    def fds(self) -> Iterable[Fd]:
        return (self._signals.fileno(),)

    def ready(self, fds: Collection[Fd], now: float) -> Iterator[events.Event]:
        for signum in self._signals.receive() if self._signals.fileno() in fds else ():
            if signum == signal.SIGWINCH:
                self._resize()
            else:
                yield events.Signalled(signum)
                if self._staging is not None:
                    yield from self._staging.signalled(signum)

    def conclude(self, end: effects.Exit) -> None:
        self._signals.ignore()
