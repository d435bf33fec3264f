"""One thing outside the core, as the loop knows it: what to poll, when to wake up, what to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

import zmq

from ..core.protocol.effects import Effect, Exit
from ..core.protocol.events import Event

Fd: TypeAlias = "int | zmq.Socket[bytes]"
# How to perform each kind of effect. What is returned are events that follow at once.
Performs: TypeAlias = Mapping[type[Effect], Callable[[Any], Iterable[Event] | None]]


class Adapter:
    """One thing outside the core.

    In every turn, the loop waits for a descriptor or the earliest deadline. Then it calls `ready`
    of all adapters, and after that `update` of all. Each event that these yield is handled by the
    core, and the effects are performed, before the iterator continues. No method may wait for
    another process or a file system, except `conclude` and `close`.
    """

    # Whether the deadline is the time limit of a helper, which gets more time after this process
    # was suspended, since the helper was suspended with it.
    limits_helper: ClassVar[bool] = False

    def performs(self) -> Performs:
        """Return the effects that this adapter, and no other, performs."""
        return {}

    def fds(self) -> Iterable[Fd]:
        """Return what wakes the loop when it is readable."""
        return ()

    def fds_to_write(self) -> Iterable[Fd]:
        """Return what wakes the loop when it is writable."""
        return ()

    def deadline(self) -> float:
        """Return when to wake the loop at the latest, on the monotonic clock."""
        return math.inf

    def ready(self, fds: Collection[Fd], now: float) -> Iterable[Event] | None:
        """Read what has arrived at those of `fds` that are this adapter's."""
        return None

    def update(self, now: float) -> Iterable[Event] | None:
        """Act on a deadline that has passed, or on a change of the core's state."""
        return None

    def conclude(self, end: Exit) -> None:
        """Finish what people see of the job, which is over."""

    def close(self) -> None:
        """Release the thing. An adapter may be closed without having been concluded."""
