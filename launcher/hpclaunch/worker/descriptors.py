"""The descriptors that a process waits for: the owner of each, and what is called when it is
readable. The `fileno` of an owner is negative while it has nothing to wait for.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar


class Readable(Protocol):
    def fileno(self) -> int: ...


R = TypeVar("R", bound=Readable)
Owners = Callable[[], Iterable[Readable]]


class Descriptors:
    """A registry. Readable descriptors are handled in the order in which the owners were added."""

    def __init__(self) -> None:
        self._entries: list[tuple[Owners, Callable[..., object]]] = []

    def add(self, owner: Readable, call: Callable[[], object]) -> None:
        """Have `call` called when this owner's descriptor is readable."""
        self._entries.append((lambda: (owner,), lambda _: call()))

    def add_some(self, owners: Callable[[], Iterable[R]], call: Callable[[R], object]) -> None:
        """Have `call` called with each owner that is readable. `owners` returns all of them; it is
        called before and after every wait, since they may have changed."""
        self._entries.append((owners, call))

    def wait(self, until: float) -> dict[Readable, int]:
        """Wait until a descriptor is readable, or until this time on the monotonic clock. Return
        {owner: descriptor} of those that are readable."""
        poll = select.poll()
        owned = {owner: owner.fileno() for owners, _ in self._entries for owner in owners()}
        for fd in owned.values():
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        left = max(0.0, 1000 * (until - time.monotonic()))
        found = dict(poll.poll(None if until == math.inf else math.ceil(left)))
        return {owner: fd for owner, fd in owned.items() if fd in found}

    def handle(self, ready: Mapping[Readable, int]) -> None:
        """Handle these owners, if they are still registered and have the same descriptor: another
        owner may have opened one of that number meanwhile."""
        for owners, call in self._entries:
            for owner in [*owners()]:
                if ready.get(owner) == owner.fileno():
                    call(owner)
