"""The process that reads and writes an agent's log files, as the loop knows it.

It is replaced when it was killed. Its successor shows the same round; whatever else the dead one
was asked has no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ..core.protocol.events import Event
from ..core.protocol.model import HEAD
from ..core.protocol.node_facts import LogTrouble, LogTroubleKind, NodeFact
from ..observe.node_console import words_of_node
from ..system.logs import messages
from ..system.logs.log_client import LogServiceClient
from ..system.shared.helper import say_now
from .adapter import Adapter, Fd
from .config import Config
from .successors import Successors

Question: TypeAlias = "messages.Prepare | messages.ReadTail | messages.LookAtDisk"
Done: TypeAlias = Callable[[messages.Reply | None], Iterable[Event]]


class Logs(Adapter):
    """Its process is `service`, which changes. `is_replaced` decides it for all helpers."""

    def __init__(
        self, config: Config, service: LogServiceClient, record: Callable[[NodeFact], None]
    ) -> None:
        self.service = service
        here = config.job.places[config.allocation.index]
        self._host, self._record = here.host, record
        self.is_replaced = Successors(here.host, record)
        # The file that says that the first agent lives, or was killed; None at any other agent.
        self._first = config.logs.first if config.logs and here.index == HEAD else None
        self._number = 0  # of the newest question
        self._asked: dict[int, Done] = {}
        self._shown: partial[messages.Prepare] | None = None  # the request of the round shown
        self._take_facts: Callable[[str], None] = lambda _: None

    def say(self, text: str) -> None:
        """Show a line to the user, after all that the workers have written so far."""
        self.service.say(text)

    def ask(self, question: Callable[..., Question], done: Done) -> None:
        """Ask what is made with the number of the question. `done` gets the answer, later, or None
        if the process is gone, and returns the events that follow.
        """
        self._number += 1
        self._asked[self._number] = done
        self.service.send(question(id=self._number))

    def prepare(
        self, request: partial[messages.Prepare], errors: Sequence[str], done: Done
    ) -> None:
        """Have a round's files made and shown, after its files for errors were removed. `done` gets
        the answer, as in `ask`, but waits for it if the process is replaced.
        """
        self._shown = partial(request, id=self._number + 1, errors=())
        self.ask(partial(request, errors=tuple(errors)), done)

    def read_facts(
        self, directory: Path, launch: str, kinds: Sequence[str], take: Callable[[str], None]
    ) -> None:
        """Have `take` get the facts of these kinds in this launch, if they can be read."""
        self._take_facts = take
        self.service.read_facts(directory, launch, kinds)

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
                case messages.Draining():
                    pass
                case _ if reply.id in self._asked:
                    yield from self._asked.pop(reply.id)(reply)
        if self.service.lost:
            yield from self._replace()

    def update(self, now: float) -> None:
        if lines := self.service.dropped():
            self._record(LogTrouble(self._host, LogTroubleKind.STALLED, str(lines)))

    def _trouble(self, complaint: messages.Complaint) -> LogTrouble:
        kind = LogTroubleKind(complaint.kind)
        return LogTrouble(self._host, kind, complaint.what, complaint.why)

    def _replace(self) -> Iterator[Event]:
        lost = self.service
        lost.close()
        self.service = lost.successor()
        asked, self._asked = self._asked, {}
        if self._shown is not None:
            again = self._shown()
            if again.id in asked:
                self._asked[again.id] = asked.pop(again.id)
            self.service.send(again)
        if not self.is_replaced(lost):
            raise RuntimeError("the workers' output cannot be shown")
        for done in asked.values():
            yield from done(None)

    def forget_first(self) -> None:
        """Remove the file by which a later start of the first agent knows that it is not the first:
        the job is over, and all that is to be written of it is on its way.
        """
        if self._first is not None:
            self.service.remove(self._first)

    def close(self) -> None:
        """Return once everything is shown, or nobody reads it, or the file system hangs."""
        for complaint in self.service.close():
            say_now(words_of_node(self._trouble(complaint)))
