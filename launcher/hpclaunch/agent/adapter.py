"""The interface between the loop and one thing outside the core."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

import zmq

from ..core.protocol.effects import Effect, Exit
from ..core.protocol.events import Event

Fd: TypeAlias = "int | zmq.Socket[bytes]"
# The function that performs each kind of effect. It returns events that are handled at once.
Performs: TypeAlias = Mapping[type[Effect], Callable[[Any], Iterable[Event] | None]]


class Adapter:
    """One thing outside the core.

    In every turn, the loop waits for a descriptor or the earliest deadline. Then it calls `ready`
    of all adapters, and after that `update` of all. Each event that these yield is handled by the
    core, and the effects are performed, before the iterator continues. No method may wait for
    another process or a file system, except `conclude` and `close`. But any method may wait
    for the exit of a helper that is gone or was killed, within the limits in `helper.py`.
    """

    # Whether the deadline is the time limit of a helper. It is extended after this process was
    # suspended, since the helper was suspended with it.
    limits_helper: ClassVar[bool] = False

    def performs(self) -> Performs:
        """Return the effects that this adapter performs. Exactly one adapter performs each."""
        return {}

    def fds(self) -> Iterable[Fd]:
        """Return the descriptors that wake the loop when they are readable."""
        return ()

    def fds_to_write(self) -> Iterable[Fd]:
        """Return the descriptors that wake the loop when they are writable."""
        return ()

    def deadline(self) -> float:
        """Return the latest time at which to wake the loop, on the monotonic clock."""
        return math.inf

    def ready(self, fds: Collection[Fd], now: float) -> Iterable[Event] | None:
        """Read from `fds`, those of this adapter's descriptors that are ready."""
        return None

    def update(self, now: float) -> Iterable[Event] | None:
        """Act after a deadline has passed or the core's state has changed."""
        return None

    def conclude(self, end: Exit) -> None:
        """Finish what users see of the job, which is over."""

    def close(self) -> None:
        """Release all resources. `conclude` may not have been called before."""
