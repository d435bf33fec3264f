"""Decides whether a helper that has ended is replaced, and records it."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable

from ..core.protocol.node_facts import HelperEnded, NodeFact
from ..system.shared.helper import Helper

MOST = 20  # helpers of a kind to replace within WITHIN after kills
MOST_FAILED = 2  # and after failures: a successor most likely fails as well
WITHIN = 600.0  # seconds


class Successors:
    """A callable that records the end of a helper, and returns whether to replace the helper. Ends
    after the first refusal are not recorded: a request that is repeated may start one each second.
    """

    def __init__(self, host: str, record: Callable[[NodeFact], None]) -> None:
        self._host, self._record = host, record
        # When the last helpers of a kind were killed (True), and when they failed (False).
        self._ends: dict[tuple[type[Helper], bool], deque[float]] = {}
        self._was_replaced: dict[type[Helper], bool] = defaultdict(lambda: True)  # the last one

    def __call__(self, ended: Helper) -> bool:
        was_killed, now = ended.was_killed(), time.monotonic()
        most = MOST if was_killed else MOST_FAILED
        ends = self._ends.setdefault((type(ended), was_killed), deque(maxlen=most))
        is_replaced = len(ends) < most or now >= ends[0] + WITHIN
        ends.append(now)
        if is_replaced or self._was_replaced[type(ended)]:
            self._record(
                HelperEnded(self._host, ended.kind, was_killed=was_killed, is_replaced=is_replaced)
            )
        self._was_replaced[type(ended)] = is_replaced
        return is_replaced
