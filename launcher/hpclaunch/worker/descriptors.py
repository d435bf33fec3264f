"""The wait for descriptors, and what is called when they are readable. The `fileno` of an owner is
negative while it has nothing to wait for.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeAlias


class Readable(Protocol):
    def fileno(self) -> int: ...


# Owners, and what is called when the descriptor of each is readable, in this order
Watched: TypeAlias = Iterable[tuple[Readable, Callable[[], object]]]


def await_readable(watched: Watched, until: float) -> dict[Readable, int]:
    """Wait until a descriptor is readable, or until this time on the monotonic clock. Return
    {owner: descriptor} of those that are readable."""
    poll = select.poll()
    owned = {owner: owner.fileno() for owner, _ in watched}
    for fd in owned.values():
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    left = max(0.0, 1000 * (until - time.monotonic()))
    found = dict(poll.poll(None if until == math.inf else math.ceil(left)))
    return {owner: fd for owner, fd in owned.items() if fd in found}


def handle(watched: Watched, ready: Mapping[Readable, int]) -> None:
    """Call what is watched and ready, if it still has the same descriptor: another owner may have
    opened one of that number meanwhile. Each call may change what `watched` yields next."""
    for owner, call in watched:
        if ready.get(owner) == owner.fileno():
            call()
