"""Which helpers that were killed are replaced at once, and what the user learns of it."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable

from ..system.shared.helper import Helper

MOST = 20  # helpers of a kind that are replaced
WITHIN = 600.0  # seconds; else something ends them again and again


class Successors:
    """The record of helpers that have ended. Called with one, it says so, and returns whether to
    replace it.
    """

    def __init__(self, host: str, say: Callable[[str], None]) -> None:
        self._host, self._say = host, say
        self._ends: dict[type[Helper], deque[float]] = defaultdict(lambda: deque(maxlen=MOST))

    def __call__(self, ended: Helper) -> bool:
        ends, now = self._ends[type(ended)], time.monotonic()
        is_replaced = len(ends) < MOST or now >= ends[0] + WITHIN
        ends.append(now)
        how = (
            "was killed and replaced"
            if is_replaced
            else "was killed again and again, and is not replaced"
        )
        costs = f": {ended.costs}" if ended.costs else ""
        self._say(f"the process that {ended.does} on {self._host} {how}{costs}")
        return is_replaced
