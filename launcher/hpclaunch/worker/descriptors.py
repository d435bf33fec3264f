"""The descriptors that a process waits for: who owns each, and what is called when it is readable.

An owner has a `fileno`, which is negative while it has nothing to wait for.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar


class Readable(Protocol):
    def fileno(self) -> int: ...


R = TypeVar("R", bound=Readable)
Owners = Callable[[], Iterable[Readable]]


class Descriptors:
    """A registry. What is readable is handled in the order in which the owners were added."""

    def __init__(self) -> None:
        self._entries: list[tuple[Owners, Callable[..., object]]] = []

    def add(self, owner: Readable, call: Callable[[], object]) -> None:
        """Have `call` called when this owner's descriptor is readable."""
        self._entries.append((lambda: (owner,), lambda _: call()))

    def add_some(self, owners: Callable[[], Iterable[R]], call: Callable[[R], object]) -> None:
        """Have `call` called with each of those owners that is readable. `owners` returns them; it
        is called before and after every wait, since others may be among them by then."""
        self._entries.append((owners, call))

    def wait(self, until: float) -> set[int]:
        """Wait until a descriptor is readable, or until this time on the monotonic clock. Return
        those that are."""
        poll = select.poll()
        for owners, _ in self._entries:
            for owner in owners():
                if owner.fileno() >= 0:
                    poll.register(owner, select.POLLIN)
        left = max(0.0, 1000 * (until - time.monotonic()))
        return {fd for fd, _ in poll.poll(None if until == math.inf else math.ceil(left))}

    def handle(self, ready: set[int]) -> None:
        """Call what belongs to these descriptors, as far as they still have an owner."""
        for owners, call in self._entries:
            for owner in [*owners()]:
                if owner.fileno() in ready:
                    call(owner)
