"""The adapter of the log service, the process that reads and writes an agent's log files, and the
last lines of workers, which it reads.

If the process was killed, it is replaced. Its successor shows the same round; other pending
questions get None as their answer.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeAlias

from ..core.protocol.events import Event
from ..core.protocol.model import HEAD
from ..core.protocol.node_facts import LogTrouble, LogTroubleKind, NodeFact
from ..core.protocol.values import value
from ..observe.node_console import words_of_node
from ..system.logs import messages
from ..system.logs.log_client import LogServiceClient
from ..system.shared.helper import say_now
from .adapter import Adapter, Fd
from .config import Config
from .successors import Successors

UNSHOWN = "the workers' output cannot be shown any more"
LINES_LIMIT = 3.0  # seconds until the last lines of a worker are read

Question: TypeAlias = messages.Prepare | messages.ReadTail | messages.LookAtDisk
Done: TypeAlias = Callable[[messages.Reply | None], Iterable[Event]]
Make: TypeAlias = Callable[[str], Iterable[Event]]  # makes events from last lines


class LogsLostError(Exception):
    """The log service has ended, and cannot be replaced. The launcher ends with this text."""


@value(frozen=True)
class PendingQuestion:
    done: Done
    until: float


class Logs(Adapter):
    """The log service is `service`. `is_replaced` decides for each helper whether to replace it."""

    limits_helper: ClassVar[bool] = True

    def __init__(
        self, config: Config, service: LogServiceClient, record: Callable[[NodeFact], None]
    ) -> None:
        self.service = service
        self._host, self._record = config.host, record
        self.is_replaced = Successors(config.host, record)
        # A file that the first agent keeps until the job is over; None for any other agent.
        self._first = config.logs.first if config.logs and config.place.index == HEAD else None
        self._number = 0  # of the newest question
        self._asked: dict[int, PendingQuestion] = {}
        self._shown: messages.Prepare | None = None  # the request for the current round
        self._take_facts: Callable[[str], None] = lambda _: None

    def ask(self, question: Question, done: Done, limit: float = math.inf) -> None:
        """Give a question a new number, and send it. `done` is called later with the answer, or
        with None if the process is gone or has not answered within `limit` seconds, since a file
        system may hang. It returns the events that follow.
        """
        self._number += 1
        self._asked[self._number] = PendingQuestion(done, time.monotonic() + limit)
        self.service.send(question.replaced(id=self._number))

    def prepare(self, request: messages.Prepare, done: Done) -> None:
        """Have a round's files made and shown. `done` is called as in `ask`, but if the process is
        replaced, its successor answers.
        """
        self._shown = request.replaced(id=self._number + 1, errors=())
        self.ask(request, done)

    def read_facts(
        self, directory: Path, launch: str, kinds: Sequence[str], take: Callable[[str], None]
    ) -> None:
        """Call `take` later with the facts of these kinds in this launch, if they can be read."""
        self._take_facts = take
        self.service.send(messages.ReadFacts(str(directory), launch, tuple(kinds)))

    def fds(self) -> Iterable[Fd]:
        return (self.service.fileno(),)

    def fds_to_write(self) -> Iterable[Fd]:
        return (self.service.fileno(),) if self.service.wanting else ()

    def ready(self, fds: Collection[Fd], now: float) -> Iterator[Event]:
        if self.service.wanting:
            self.service.flush()
        if self.service.fileno() not in fds:
            return
        for reply in self.service.replies():
            match reply:
                case messages.Facts(lines=lines):
                    self._take_facts(lines)
                case messages.Complaint():
                    self._record(self._trouble(reply))
                case messages.Lost() | messages.Draining():
                    pass
                case _ if reply.id in self._asked:
                    yield from self._asked.pop(reply.id).done(reply)
        if self.service.lost:
            yield from self._replace()

    def deadline(self) -> float:
        return min((question.until for question in self._asked.values()), default=math.inf)

    def update(self, now: float) -> Iterator[Event]:
        if lines := self.service.dropped():
            self._record(self._stalled(lines))
        for number in [n for n, question in self._asked.items() if now >= question.until]:
            yield from self._asked.pop(number).done(None)

    def _stalled(self, lines: int) -> LogTrouble:
        return LogTrouble(self._host, LogTroubleKind.STALLED, str(lines))

    def _trouble(self, complaint: messages.Complaint) -> LogTrouble:
        kind = LogTroubleKind(complaint.kind)
        return LogTrouble(self._host, kind, complaint.what, complaint.why)

    def _replace(self) -> Iterator[Event]:
        """Start another log service. Raises LogsLostError."""
        lost = self.service
        try:
            self.service = lost.successor()
        except OSError as e:
            raise LogsLostError(
                f"on {self._host}: {UNSHOWN}: the process that shows it has ended, and no other "
                f"can be started: {e.strerror}: see ulimit -u and ulimit -n"
            ) from e
        lost.abandon()  # not `close`: the heartbeat must not wait for a process that hangs
        asked, self._asked = self._asked, {}
        if self._shown is not None:
            if (number := self._shown.id) in asked:
                self._asked[number] = asked.pop(number)
            self.service.send(self._shown)
        if not self.is_replaced(lost):
            what = "the process that shows it ends again and again: see what ends it"
            raise LogsLostError(f"on {self._host}: {UNSHOWN}: {what}, such as a lack of memory")
        for question in asked.values():
            yield from question.done(None)

    def forget_first(self) -> None:
        """Remove the file by which a later start of the first agent knows that an earlier one was
        killed. Call this once the job is over.
        """
        if self._first is not None:
            self.service.send(messages.Remove(str(self._first)))

    def close(self) -> None:
        """Return once all output is shown, or cannot be shown because its reader or disk hangs."""
        troubles = [*map(self._trouble, self.service.close())]
        if lines := self.service.dropped():
            troubles.append(self._stalled(lines))
        for trouble in troubles:
            say_now(words_of_node(trouble))


@value()
class _Delayed:
    """Events that wait for last lines, or for earlier events."""

    make: Make  # from the last lines
    lines: str | None  # None: not read yet


class LastWords:
    """Adds the last lines of workers that have ended to the events of their end.

    The log service reads them, which may take a while: all later events wait for these. If the file
    system hangs, the events are sent without the lines.
    """

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._queue: deque[_Delayed] = deque()

    def add(self, make: Make, files: Sequence[Path] = ()) -> list[Event]:
        """Append the events that `make` returns for the last lines of these files. Return the
        events that can be delivered now.
        """
        delayed = _Delayed(make, None if files else "")
        self._queue.append(delayed)
        if files:
            question = messages.ReadTail(tuple(map(str, files)))
            self._logs.ask(question, partial(self._on_tail, delayed), LINES_LIMIT)
        return self._take()

    def _on_tail(self, delayed: _Delayed, reply: messages.Reply | None) -> list[Event]:
        delayed.lines = reply.text if isinstance(reply, messages.Tail) else ""
        return self._take()

    def _take(self) -> list[Event]:
        found: list[Event] = []
        while self._queue and (lines := self._queue[0].lines) is not None:
            found += self._queue.popleft().make(lines)
        return found
