"""Decides which helpers that have ended are replaced, and informs the user."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable

from ..system.shared.helper import Helper

MOST = 20  # helpers of a kind that are replaced
MOST_FAILED = 2  # of those that were not killed: a successor most likely fails as well
WITHIN = 600.0  # seconds in which at most so many of a kind are replaced


class Successors:
    """The record of helpers that have ended. Calling it with one reports that end to the user, and
    returns whether to replace it.
    """

    def __init__(self, host: str, say: Callable[[str], None]) -> None:
        self._host, self._say = host, say
        self._ends: dict[type[Helper], deque[float]] = defaultdict(lambda: deque(maxlen=MOST))

    def __call__(self, ended: Helper) -> bool:
        ends, now = self._ends[type(ended)], time.monotonic()
        was_killed = ended.was_killed()
        most = MOST if was_killed else MOST_FAILED
        is_replaced = len(ends) < most or now >= ends[-most] + WITHIN
        ends.append(now)
        done = "was killed" if was_killed else "failed"
        replaced = "and replaced" if was_killed else "and was replaced"
        how = f"{done} {replaced if is_replaced else 'again and again, and is not replaced'}"
        costs = f": {ended.costs}" if ended.costs else ""
        self._say(f"the process that {ended.does} on {self._host} {how}{costs}")
        return is_replaced
