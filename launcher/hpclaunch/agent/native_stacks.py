"""The native stacks of hanging workers, where py-spy is in PATH."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import zmq

from ..system.processes.py_spy import PySpyClient, path_of_py_spy
from .evidence import HangEvidence, state_of

# Seconds to wait for them. py-spy ends earlier, unless it reads from the file system on which the
# workers hang: then the head is to be told without.
LIMIT = 3.0


class AwaitsStacks(NamedTuple):
    """Evidence that lacks the stacks of these ranks."""

    evidence: HangEvidence
    ranks: list[int]
    until: float


class NativeStacks:
    def __init__(self, poller: zmq.Poller, is_replaced: Callable[[PySpyClient], bool]) -> None:
        self._poller, self._is_replaced = poller, is_replaced
        self._py_spy = path_of_py_spy()  # now: later, a file system may have stalled
        self._client: PySpyClient | None = None
        self._waiting: deque[AwaitsStacks] = deque()
        self._late = 0  # answers for which nobody waits any more

    def close(self) -> None:
        if self._client is not None:
            self._poller.unregister(self._client.fileno())
            self._client.end(0.0)
            self._client, self._late = None, 0

    def add_to(self, found: HangEvidence) -> bool:
        """Complete this evidence, here or later; False if there is nothing to add."""
        if self._py_spy is None or not found.ranks:
            return False
        if self._client is None:
            self._client = self._start(self._py_spy)
        if self._client is None:
            return False
        # The time may not be enough for all: those at fault are rarely among those that wait.
        asked = sorted(found.ranks, key=lambda rank: state_of(rank).waits is not None)
        self._client.request([rank["pid"] for rank in asked])
        ranks = [rank["rank"] for rank in asked]
        self._waiting.append(AwaitsStacks(found, ranks, time.monotonic() + LIMIT))
        return True

    def _start(self, py_spy: str) -> PySpyClient | None:
        try:
            client = PySpyClient(py_spy)
        except OSError:
            return None
        self._poller.register(client.fileno(), zmq.POLLIN)
        return client

    def next_deadline(self) -> float:
        return self._waiting[0].until if self._waiting else math.inf

    def expire(self, now: float) -> list[HangEvidence]:
        """Evidence that stays as it is. Call it after `receive`."""
        over = []
        while self._waiting and now >= self._waiting[0].until:
            over.append(self._waiting.popleft().evidence)
        self._late += len(over)
        return over

    def receive(self, ready: Mapping[Any, int]) -> list[HangEvidence]:
        """Evidence that is complete now."""
        client = self._client
        if client is None or client.fileno() not in ready:
            return []
        answers = [reply["texts"] for reply in client.receive()]
        late, self._late = self._late, max(0, self._late - len(answers))
        answers = answers[late:]
        if client.lost:
            self.close()
            if self._is_replaced(client) and self._py_spy is not None:
                self._client = self._start(self._py_spy)
            answers = [[]] * len(self._waiting)
        complete = []
        for texts in answers:
            found, asked, _ = self._waiting.popleft()
            known = {rank: text for rank, text in zip(asked, texts, strict=False) if text}
            complete.append(found._replace(native=known))
        return complete
