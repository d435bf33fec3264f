"""Inquiries about agents that may be dead, and the notices that this agent leaves behind.

`worker/death_notices.py` describes both. A host that refuses connections or does not answer proves
nothing.
"""

from __future__ import annotations

import contextlib
import errno
import math
import select
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ...worker import death_notices
from ...worker.death_notices import LONGEST, new_question, proves_death
from ...worker.fork_server_messages import PostOnDeath
from .route import LOOPBACK, begin_connection

LOOKS = (0.0, 0.01, 0.03, 0.1, 0.4, 1.0, 2.0)  # seconds after which an inquiry tries again
NO_PLACE = -1  # index in the notice of an agent that does not know its own
RELEASE_LIMIT = 0.5  # seconds


def own_notice(key: bytes, agent: int | None, incarnation: str, port: int) -> PostOnDeath:
    """Return the request to post the notice of an agent. `agent`: its index; None if it has no
    place yet.
    """
    index = NO_PLACE if agent is None else agent
    text = death_notices.notice(index, incarnation)
    secret = death_notices.notice_secret(key, text.encode())
    return PostOnDeath(port, text, secret.hex(), death_notices.release_word(key, index))


def take_down(key: bytes, agent: int, ports: Iterable[int]) -> None:
    """Take down the notice of an earlier agent in this place, since a new agent is alive.
    Returns once nobody serves it any longer, or a reply takes longer than RELEASE_LIMIT.
    """
    for port in ports:
        with contextlib.suppress(OSError), socket.socket() as s:
            s.settimeout(RELEASE_LIMIT)
            s.connect((LOOPBACK, port))
            s.send(question := new_question())
            if proves_death(s.recv(LONGEST), question, key, agent):
                s.send(death_notices.release_word(key, agent).encode())
                s.recv(1)  # until it is closed


class Inquiries:
    """Questions about agents that may be dead. Call `receive` when readable or at its deadline."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._epoll = select.epoll()
        self._open: dict[int, _Inquiry] = {}

    def fileno(self) -> int:
        return self._epoll.fileno()

    def begin(
        self,
        agent: int,
        targets: Iterable[tuple[str, int]],
        now: float,
        incarnation: str = "",
        *,
        number: int = 0,
    ) -> None:
        """Begin to ask at `targets`, the addresses and ports where the agent may have listened. An
        open inquiry about the same start of the agent continues. The answer has the `number` of the
        last call.
        """
        targets, known = tuple(targets), self._open.get(agent)
        if targets and (known is None or incarnation not in ("", known.incarnation)):
            if known is not None:
                known.close()
            looks = [now + wait for wait in LOOKS]
            known = _Inquiry(self._epoll, self._key, agent, incarnation, targets, looks)
            self._open[agent] = known
        if known is not None:
            known.number = number

    def next_deadline(self) -> float:
        return min((each.looks[0] for each in self._open.values()), default=math.inf)

    def receive(self, now: float) -> list[tuple[int, int]]:
        """Return (agent, number of the inquiry) for each agent that is found to be dead."""
        dead = []
        ready = {fd for fd, _ in self._epoll.poll(0)}
        for agent, inquiry in list(self._open.items()):
            inquiry.listen(ready)
            if inquiry.is_dead:
                dead.append((agent, inquiry.number))
            elif now >= inquiry.looks[0]:
                inquiry.looks.pop(0)
                inquiry.close()
                if inquiry.looks:
                    inquiry.look()
            if inquiry.is_dead or not inquiry.looks:
                inquiry.close()
                del self._open[agent]
        return dead

    def close(self) -> None:
        for inquiry in self._open.values():
            inquiry.close()
        self._epoll.close()


@dataclass(slots=True)
class _Inquiry:
    _epoll: select.epoll
    _key: bytes
    _agent: int
    incarnation: str
    _targets: tuple[tuple[str, int], ...]
    looks: list[float]  # when to try again; after the last time the inquiry is dropped
    is_dead: bool = False
    number: int = 0  # of the last request for it
    _question: bytes = field(default_factory=new_question)
    _ends: dict[int, socket.socket] = field(default_factory=dict)

    def look(self) -> None:
        for target in self._targets:
            s, error = begin_connection(*target)
            if s is None:
                continue
            if error in (0, errno.EINPROGRESS):
                self._ends[s.fileno()] = s
                self._epoll.register(s, select.EPOLLOUT)
            else:
                s.close()

    def listen(self, ready: Collection[int]) -> None:
        for fd in self._ends.keys() & ready:
            s = self._ends[fd]
            try:
                answer = s.recv(LONGEST)
            except BlockingIOError:  # it was connected just now
                self._ask(fd, s)
                continue
            except OSError:  # refused, say
                answer = b""
            about = (self._key, self._agent, self.incarnation)
            self.is_dead |= proves_death(answer, self._question, *about)
            self._drop(fd)

    def _ask(self, fd: int, s: socket.socket) -> None:
        """Send the question over a connection that is now open. A living agent sends its own
        greeting, and takes the question for a part of one.
        """
        try:
            s.send(self._question)
            self._epoll.modify(fd, select.EPOLLIN)
        except OSError:
            self._drop(fd)

    def close(self) -> None:
        for fd in list(self._ends):
            self._drop(fd)

    def _drop(self, fd: int) -> None:
        self._epoll.unregister(fd)
        self._ends.pop(fd).close()
