"""Decides whether a helper that has ended is replaced, and records it."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable

from ..core.protocol.node_facts import HelperEnded, NodeFact
from ..system.shared.helper import Helper

MOST = 20  # helpers of a kind to replace within WITHIN
MOST_FAILED = 2  # the limit if it was not killed: a successor most likely fails as well
WITHIN = 600.0  # seconds


class Successors:
    """A callable that records the end of a helper, and returns whether to replace the helper. Ends
    after the first refusal are not recorded: a request that is repeated may start one each second.
    """

    def __init__(self, host: str, record: Callable[[NodeFact], None]) -> None:
        self._host, self._record = host, record
        self._ends: dict[type[Helper], deque[float]] = defaultdict(lambda: deque(maxlen=MOST))
        self._was_replaced: dict[type[Helper], bool] = defaultdict(lambda: True)  # the last one

    def __call__(self, ended: Helper) -> bool:
        ends, now = self._ends[type(ended)], time.monotonic()
        was_killed = ended.was_killed()
        most = MOST if was_killed else MOST_FAILED
        is_replaced = len(ends) < most or now >= ends[-most] + WITHIN
        ends.append(now)
        if is_replaced or self._was_replaced[type(ended)]:
            self._record(
                HelperEnded(self._host, ended.kind, was_killed=was_killed, is_replaced=is_replaced)
            )
        self._was_replaced[type(ended)] = is_replaced
        return is_replaced
