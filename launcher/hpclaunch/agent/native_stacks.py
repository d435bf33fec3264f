"""The native stacks of hanging workers, where py-spy is in PATH."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Mapping
from typing import Any

import zmq

from ..system.processes.py_spy import PySpyClient
from .evidence import HangEvidence, state_of


class NativeStacks:
    def __init__(self, poller: zmq.Poller) -> None:
        self._poller = poller
        self._client: PySpyClient | None = None
        # Evidence that lacks the stacks of these ranks.
        self._waiting: deque[tuple[HangEvidence, list[int]]] = deque()

    def close(self) -> None:
        if self._client is not None:
            self._poller.unregister(self._client.fileno())
            self._client.end(0.0)
            self._client = None

    def add_to(self, found: HangEvidence) -> bool:
        """Complete this evidence, here or later; False if there is nothing to add."""
        py_spy = shutil.which("py-spy")
        if py_spy is None or not found.ranks:
            return False
        if self._client is None:
            try:
                self._client = PySpyClient(py_spy)
            except OSError:
                return False
            self._poller.register(self._client.fileno(), zmq.POLLIN)
        # The time may not be enough for all: those at fault are rarely among those that wait.
        asked = sorted(found.ranks, key=lambda rank: state_of(rank).waits is not None)
        self._client.ask(pids=[rank["pid"] for rank in asked])
        self._waiting.append((found, [rank["rank"] for rank in asked]))
        return True

    def receive(self, ready: Mapping[Any, int]) -> list[HangEvidence]:
        """Evidence that is complete now."""
        client = self._client
        if client is None or client.fileno() not in ready:
            return []
        answers = [reply["texts"] for reply in client.receive()]
        if client.lost:
            self.close()
            answers = [[]] * len(self._waiting)
        complete = []
        for texts in answers:
            found, asked = self._waiting.popleft()
            known = {rank: text for rank, text in zip(asked, texts, strict=False) if text}
            complete.append(found._replace(native=known))
        return complete
