"""Whether another host can be reached, and if not, why: judged by connections to its ports."""

from __future__ import annotations

import errno
import math
import select
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from enum import Enum

from hpclaunch.core.protocol.wording import some

MOST = 128  # connections at once; enough for every port at every address of a host
SHOWN = 4  # addresses or ports named in a sentence
LOOKS = (0.0, 0.02, 0.1, 0.4, 1.0, 2.0)  # seconds after which a witness tries again

_REFUSED = {errno.ECONNREFUSED, errno.ECONNRESET}
_ELSEWHERE = {  # the packet never left, or a router or firewall sent it back
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.EHOSTDOWN,
    errno.EADDRNOTAVAIL,
    errno.EAFNOSUPPORT,
    errno.EACCES,
    errno.EPERM,
    errno.EINVAL,
}


class Answer(Enum):
    """Of one port; ordered by how much the answer says about the host."""

    OPEN = "open"  # somebody listens
    REFUSED = "refused"  # the host's kernel answers: nobody listens
    SILENT = "no answer"
    NO_ROUTE = "no route"


def explain(host: str, addresses: Iterable[str], ports: Iterable[int], timeout: float = 2.0) -> str:
    """Why the head on `host` is not heard, in a sentence or two; "" if that cannot be told.

    Takes up to `timeout` seconds, and never raises.
    """
    try:
        found = probe(addresses, ports, timeout)
    except (OSError, ValueError):  # no descriptor is left, say
        return ""
    return in_words(host, found)


def probe(
    addresses: Iterable[str], ports: Iterable[int], timeout: float
) -> dict[tuple[str, int], Answer]:
    """Try all ports of all numeric addresses at once. What could not be tried is left out."""
    ports = tuple(ports)
    targets = [(address, port) for address in dict.fromkeys(addresses) for port in ports][:MOST]
    found: dict[tuple[str, int], Answer] = {}
    waiting: dict[int, tuple[socket.socket, tuple[str, int]]] = {}
    poll = select.poll()
    try:
        for target in targets:
            s, error = _begin(*target)
            if s is not None and error == errno.EINPROGRESS:
                waiting[s.fileno()] = s, target
                poll.register(s, select.POLLOUT)
                continue
            if s is not None:
                s.close()
            if (answer := _answer(error)) is not None:
                found[target] = answer
        deadline = time.monotonic() + timeout
        while waiting and (left := deadline - time.monotonic()) > 0:
            for fd, _ in poll.poll(left * 1000):
                poll.unregister(fd)
                s, target = waiting.pop(fd)
                with s:
                    answer = _answer(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                if answer is not None:
                    found[target] = answer
        found |= {target: Answer.SILENT for _, target in waiting.values()}
    finally:
        for s, _ in waiting.values():
            s.close()
    return found


def _begin(address: str, port: int) -> tuple[socket.socket | None, int]:
    """A connection that is being made, and the error so far."""
    try:
        ((family, kind, _, _, sockaddr),) = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
        s = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    except OSError as e:
        return None, e.errno or errno.EINVAL
    return s, s.connect_ex(sockaddr)


def _answer(error: int) -> Answer | None:
    if error == 0:
        return Answer.OPEN
    if error in _REFUSED:
        return Answer.REFUSED
    if error == errno.ETIMEDOUT:
        return Answer.SILENT
    return Answer.NO_ROUTE if error in _ELSEWHERE else None


def in_words(host: str, found: Mapping[tuple[str, int], Answer]) -> str:
    """The best answer decides: an address in another network may well be silent."""
    if not found:
        return ""
    best = min(found.values(), key=list(Answer).index)
    those = [target for target, answer in found.items() if answer is best]
    addresses = some((address for address, _ in those), SHOWN)
    ports = some((str(port) for _, port in those), SHOWN)
    match best:
        case Answer.OPEN:
            return (
                f"something listens on {host} ({addresses}, port {ports}), but does not answer as "
                "the head does: another program, or an hpclaunch of another version or secret. "
                "Compare with: srun hpclaunch doctor"
            )
        case Answer.REFUSED:
            return (
                f"{host} ({addresses}) is up, but nothing listens there on this job's ports "
                f"({ports}): hpclaunch has not been started there yet or has ended, or it has "
                "another secret file, from which the ports derive"
            )
        case Answer.SILENT:
            return (
                f"{host} ({addresses}) does not answer at all: the host is down or cut off, or a "
                f"firewall between the hosts drops connections to port {ports}, or this is an "
                "address in a network that the hosts do not share"
            )
        case Answer.NO_ROUTE:
            return (
                f"there is no route from here to {host} ({addresses}): the link is down, or no "
                "network of this host leads there, or a firewall rejects it. Look at: ip route get "
                f"{those[0][0]}"
            )


class Witness:
    """Tells which agents are dead: the host's kernel refuses connections to every port where the
    agent may listen. A host that does not answer proves nothing.

    Call `receive` when `fileno` is readable or `next_deadline` has come.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._asked: dict[int, _Question] = {}

    def fileno(self) -> int:
        return self._epoll.fileno()

    def ask(self, agent: int, targets: Iterable[tuple[str, int]], now: float) -> None:
        targets = tuple(targets)
        if targets and agent not in self._asked:
            self._asked[agent] = _Question(targets, [now + wait for wait in LOOKS])

    def next_deadline(self) -> float:
        return min((q.looks[0] for q in self._asked.values()), default=math.inf)

    def receive(self, now: float) -> list[int]:
        """The agents that are found to be dead."""
        dead = []
        ready = {fd for fd, _ in self._epoll.poll(0)}
        for agent, question in list(self._asked.items()):
            question.listen(self._epoll, ready)
            if question.is_dead:
                dead.append(agent)
            elif now >= question.looks[0]:
                question.looks.pop(0)
                question.close(self._epoll)
                if question.looks:
                    question.look(self._epoll)
            if question.is_dead or not question.looks:
                question.close(self._epoll)
                del self._asked[agent]
        return dead

    def close(self) -> None:
        for question in self._asked.values():
            question.close(self._epoll)
        self._epoll.close()


class _Question:
    def __init__(self, targets: tuple[tuple[str, int], ...], looks: list[float]) -> None:
        self.looks = looks  # when to try again; after the last time the question is dropped
        self._targets = targets
        self._waiting: dict[int, socket.socket] = {}
        self._refused = 0

    @property
    def is_dead(self) -> bool:
        return self._refused == len(self._targets)

    def look(self, epoll: select.epoll) -> None:
        self._refused = 0
        for target in self._targets:
            s, error = _begin(*target)
            if s is not None and error == errno.EINPROGRESS:
                self._waiting[s.fileno()] = s
                epoll.register(s, select.EPOLLOUT)
                continue
            self._refused += _answer(error) is Answer.REFUSED
            if s is not None:
                s.close()

    def listen(self, epoll: select.epoll, ready: Collection[int]) -> None:
        for fd in self._waiting.keys() & ready:
            error = self._waiting[fd].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._refused += _answer(error) is Answer.REFUSED
            self._drop(epoll, fd)

    def close(self, epoll: select.epoll) -> None:
        for fd in list(self._waiting):
            self._drop(epoll, fd)

    def _drop(self, epoll: select.epoll, fd: int) -> None:
        epoll.unregister(fd)
        self._waiting.pop(fd).close()
