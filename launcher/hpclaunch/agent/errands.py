"""Errands that an agent has its errand service (`errand_service.py`) run, since they may hang."""

from __future__ import annotations

import contextlib
import math
import os
import select
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import ClassVar, TypeAlias

from ..core.protocol import events
from ..core.protocol.process_kinds import ProcessKind
from ..core.protocol.values import value
from ..system.shared.errands import ANSWERS, Answer, Errand, Failed, Notify
from ..system.shared.helper import Helper
from ..worker.messages import decode
from .adapter import Adapter, Fd

Done: TypeAlias = Callable[[Answer | None], Iterable[events.Event]]


class ErrandServiceClient(Helper):
    has_children = True
    kind = ProcessKind.ERRANDS

    def __init__(self) -> None:
        super().__init__("hpclaunch.agent.errand_service", str(os.getpid()))

    def answers(self) -> list[Answer | Failed]:
        """Return the answers received so far. Call this when the descriptor is readable."""
        return [decode(ANSWERS, reply) for reply in self.receive()]

    def wait(self, limit: float) -> bool:
        """Return whether within so many seconds an answer has arrived or the process has ended."""
        return self._is_ready(select.POLLIN, limit)


@value()
class PendingErrand:
    errand: Errand
    done: Done
    until: float


class Errands(Adapter):
    """Sends errands to the process that runs them, and receives the answers.

    The process starts with the first errand, and is replaced if it was killed. It is kept when it
    is idle, and when errands hang: once a file system has stalled, starting or ending a process may
    block the loop.
    """

    limits_helper: ClassVar[bool] = True

    def __init__(self, is_replaced: Callable[[ErrandServiceClient], bool]) -> None:
        self._is_replaced = is_replaced
        self._client: ErrandServiceClient | None = None
        self._is_refused = False  # no further process may start, after too many have ended
        self._number = 0
        self._pending: dict[int, PendingErrand] = {}

    def run(self, errand: Errand, done: Done) -> None:
        """Give an errand a new number, and send it.

        `done` is called later with the answer, or with None if the errand failed, was too late, or
        its process is gone. It returns the events that follow.
        """
        self._number += 1
        errand = errand.replaced(number=self._number)
        self._pending[self._number] = PendingErrand(errand, done, time.monotonic() + errand.limit)
        self._send(self._number)

    def _send(self, number: int) -> None:
        pending = self._pending[number]
        client = self._client or self._start()
        if client is None:
            pending.until = time.monotonic()
        else:
            client.send(pending.errand)

    def _start(self) -> ErrandServiceClient | None:
        """Start the process. Return None if that is impossible."""
        if not self._is_refused:
            with contextlib.suppress(OSError):  # too many processes or descriptors
                self._client = ErrandServiceClient()
        return self._client

    def fds(self) -> Iterable[Fd]:
        return () if self._client is None else (self._client.fileno(),)

    def deadline(self) -> float:
        return min((pending.until for pending in self._pending.values()), default=math.inf)

    def update(self, now: float) -> list[events.Event]:
        """Give up errands that are too late."""
        late = [number for number, pending in self._pending.items() if now >= pending.until]
        return self._conclude(dict.fromkeys(late))

    def ready(self, fds: Collection[Fd], now: float) -> list[events.Event]:
        return self._hear() if self._client and self._client.fileno() in fds else []

    def wait(self, limit: float) -> None:
        """Wait, after the end of the loop, for the next answer or time limit, and handle it."""
        left = self.deadline() - time.monotonic()
        if self._client is not None and self._client.wait(min(limit, left)):
            self._hear()
        self.update(time.monotonic())

    def _hear(self) -> list[events.Event]:
        client = self._client
        assert client is not None, "the caller has looked"
        answers = {a.number: None if isinstance(a, Failed) else a for a in client.answers()}
        found = self._conclude(answers)
        return found + (self._replace(client) if client.lost else [])

    def _conclude(self, answers: Mapping[int, Answer | None]) -> list[events.Event]:
        over = [(self._pending.pop(n), a) for n, a in answers.items() if n in self._pending]
        return [event for pending, answer in over for event in pending.done(answer)]

    def _replace(self, lost: ErrandServiceClient) -> list[events.Event]:
        """Start a successor, and send it all pending errands except the user's commands, which may
        have run already.
        """
        self.close()
        self._is_refused = not self._is_replaced(lost)
        self._start()
        interrupted = [n for n, p in self._pending.items() if isinstance(p.errand, Notify)]
        ended = [*self._pending] if self._is_refused else interrupted
        for number in self._pending.keys() - set(ended):
            self._send(number)
        return self._conclude(dict.fromkeys(ended))

    def close(self) -> None:
        """Kill the process and all processes that it has started."""
        if self._client is not None:
            self._client.abandon()
            self._client = None
