"""Finds out, by connections to its ports, why another host cannot be reached."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Iterable, Mapping
from enum import Enum

from hpclaunch.core.protocol.wording import some

from .route import begin_connection

MOST = 128  # connections at once; enough for every port at every address of a host
SHOWN = 4  # addresses or ports named in a sentence

_REFUSED = {errno.ECONNREFUSED, errno.ECONNRESET}
_ELSEWHERE = {  # the packet never left, or a router or firewall rejected it
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
    """Answer of one port, ordered by how much it says about the host."""

    OPEN = "open"  # somebody listens
    REFUSED = "refused"  # the host's kernel answers: nobody listens
    SILENT = "no answer"
    NO_ROUTE = "no route"


def explain(host: str, addresses: Iterable[str], ports: Iterable[int], timeout: float = 2.0) -> str:
    """Return why the head on `host` is silent, in a sentence or two; "" if that is not known.

    Takes up to `timeout` seconds, and never raises.
    """
    return in_words(host, answers(addresses, ports, timeout))


def answers(
    addresses: Iterable[str], ports: Iterable[int], timeout: float = 2.0
) -> dict[tuple[str, int], Answer]:
    """Return what `probe` does, or nothing where it fails."""
    try:
        return probe(addresses, ports, timeout)
    except (OSError, ValueError):  # no descriptor is left, say
        return {}


def is_cut_off(found: Mapping[tuple[str, int], Answer]) -> bool:
    """Return whether nothing at all has come back from the host."""
    return bool(found) and set(found.values()) <= {Answer.SILENT, Answer.NO_ROUTE}


def probe(
    addresses: Iterable[str], ports: Iterable[int], timeout: float
) -> dict[tuple[str, int], Answer]:
    """Try all ports of all numeric addresses at once. What could not be tried is left out."""
    ports = tuple(ports)
    targets = [(address, port) for address in dict.fromkeys(addresses) for port in ports][:MOST]
    errors: dict[tuple[str, int], int] = {}
    waiting: dict[int, tuple[socket.socket, tuple[str, int]]] = {}
    poll = select.poll()
    try:
        for target in targets:
            s, errors[target] = begin_connection(*target)
            if s is not None and errors[target] == errno.EINPROGRESS:
                waiting[s.fileno()] = s, target
                poll.register(s, select.POLLOUT)
            elif s is not None:
                s.close()
        deadline = time.monotonic() + timeout
        # After the deadline, too, look for answers that have come: this process may have waited for
        # a CPU.
        while waiting and (ready := poll.poll(1000 * max(0.0, deadline - time.monotonic()))):
            for fd, _ in ready:
                poll.unregister(fd)
                s, target = waiting.pop(fd)
                with s:
                    errors[target] = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    finally:
        for s, _ in waiting.values():
            s.close()
    errors |= {target: errno.ETIMEDOUT for _, target in waiting.values()}
    return {t: answer for t, error in errors.items() if (answer := _answer(error)) is not None}


def _answer(error: int) -> Answer | None:
    if error == 0:
        return Answer.OPEN
    if error in _REFUSED:
        return Answer.REFUSED
    if error == errno.ETIMEDOUT:
        return Answer.SILENT
    return Answer.NO_ROUTE if error in _ELSEWHERE else None


def in_words(host: str, found: Mapping[tuple[str, int], Answer]) -> str:
    """Return what the answers mean. The best one counts: some addresses may be unreachable."""
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
                "the head does: another program, an hpclaunch of another version or secret, or a "
                "head that is stopped or overloaded. Compare with: srun hpclaunch doctor"
            )
        case Answer.REFUSED:
            return (
                f"{host} ({addresses}) is up, but nothing listens there on this job's ports "
                f"({ports}): hpclaunch has not been started there yet or has ended, or it has "
                "another secret file or --rdzv-id, from which the ports derive"
            )
        case Answer.SILENT:
            return (
                f"{host} ({addresses}) does not answer at all: the host is down or cut off, or a "
                f"firewall between the hosts drops connections to port {ports}, or this is an "
                "address in a network that the hosts do not share. --rdzv-endpoint HOST:PORT "
                "chooses another address and port of that host"
            )
        case Answer.NO_ROUTE:
            return (
                f"there is no route from here to {host} ({addresses}): the link is down, or no "
                "network of this host leads there, or a firewall rejects it. Look at: ip route get "
                f"{those[0][0]}"
            )
