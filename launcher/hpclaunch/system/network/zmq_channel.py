"""The agents' channels: ZeroMQ with CURVE, authenticated both ways.

Only a holder of this job step's keys completes a handshake. So agents also find each other
without configuration: an agent listens on the first free one of a few ports, which derive from the
secret and its index. The others try all of these ports, and only one answers with the right key. No
message is sent to the other ports.

Every agent listens, since any may have to replace a lost head; each also connects to its head.

An agent's routing id is its index. An agent without one (`index` None) has a random name, and gets
a number beyond those of all places until the first head gives it a place. Where a member tries
several addresses of a head, each connection has an id of its own, such as 3/1. Of two with the same
id, the later one would replace the other. If both arrived at the same moment, libzmq 4.3.5 would
sometimes never read from the one that is kept.

Nothing here blocks, and nothing is queued for a peer that is not there: messages are whole states
and are sent again (`core/protocol/messages.py`). This module does not interpret them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils import z85

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import HEAD

# Below the usual range for outgoing connections (32768 and up), above most daemons.
PORTS = range(20000, 32000)
CANDIDATES = 8
NO_PLACE = b"?"  # begins the routing id of an agent without an index
ADDRESS = b"/"  # in a routing id, before the number of the head's address, from the second one on
MAPPED = "::ffff:"  # begins an IPv4 address of an IPv6 socket
LINGER = 2000  # milliseconds for the last messages
RECONNECT = 100  # milliseconds, growing to RECONNECT_MAX
RECONNECT_MAX = 1000
# A connection to the head that has not authenticated itself after this time is closed. A member
# that is this slow connects again.
HANDSHAKE = 3000  # milliseconds
BACKLOG = 4096  # connections that wait to be accepted; what the kernel allows by default
_TCP_THIN_LINEAR_TIMEOUTS, _TCP_RTO_MAX_MS = 16, 44  # linux/tcp.h; Python has no names for them
_ZAP = "inproc://zeromq.zap.01"
_WATCHED = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_WATCHED_BY_MEMBER = (
    _WATCHED | zmq.EVENT_CONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


@dataclass(frozen=True, slots=True)
class Keys:
    """CURVE key pairs in Z85: of one agent as head, and of all members; never printed."""

    head_public: bytes
    head_secret: bytes = field(repr=False)
    member_public: bytes
    member_secret: bytes = field(repr=False)
    death_secret: bytes = field(repr=False)  # signs notices of an agent's death
    ports: tuple[int, ...]  # where that agent may listen, in order of preference
    # The stagers of this job know each other by it.
    stager_key: bytes = field(repr=False, default=b"")

    def admit(self, credentials: Sequence[bytes]) -> bool:
        """Return whether these are a member's: the mechanism, and the key."""
        return credentials == [b"CURVE", z85.decode(self.member_public)]


def derive(secret: bytes, identity: str, port: int = 0, agent: int = HEAD) -> Keys:
    """Return the keys and ports of an agent in one job step; those of any other job are unrelated.

    `port` is the user's own choice, which is tried first.
    """
    import hmac  # loads OpenSSL, which an agent that is alone does not need

    def stream(purpose: str) -> bytes:
        return hmac.digest(secret, os.fsencode(f"hpclaunch/1 {identity} {purpose}"), "sha256")

    head_secret = z85.encode(stream(f"head {agent}"))
    member_secret = z85.encode(stream("member"))
    draws = stream(f"ports {agent}")
    ports = [port] if port else []
    ports += [
        PORTS[int.from_bytes(draws[i : i + 4], "big") % len(PORTS)]
        for i in range(0, 4 * CANDIDATES, 4)
    ]
    return Keys(
        head_public=zmq.curve_public(head_secret),
        head_secret=head_secret,
        member_public=zmq.curve_public(member_secret),
        member_secret=member_secret,
        death_secret=stream("death"),
        ports=tuple(dict.fromkeys(ports)),
        stager_key=stream("stagers"),
    )


@dataclass(frozen=True, slots=True)
class Arrived:
    """Bytes from an agent with the job's keys; `address` is its end of the connection."""

    sender: int
    data: bytes
    address: str


@dataclass(frozen=True, slots=True)
class Reached:
    """A connection to an agent at this address is up; messages sent before may be lost."""

    index: int
    address: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The other side has closed the connection to an agent."""

    index: int


Item = Arrived | Reached | Closed


def _retransmit_soon(connection: int) -> None:
    """Have TCP retransmit at even intervals, from 0.2 s on, and from Linux 6.15 on at least once a
    second.

    By default the intervals double: a stall of 2 seconds becomes one of 3, and an agent that was
    only slow is taken for dead.
    """
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection)) as s:
        s.setsockopt(socket.IPPROTO_TCP, _TCP_THIN_LINEAR_TIMEOUTS, 1)
        s.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, 1000)


class Channel(ABC):
    """Base of both ends: sockets to poll, and what arrives on them."""

    def __init__(
        self, kind: int, max_bytes: int, watched: int, context: zmq.Context[Any] | None
    ) -> None:
        self.context = context or zmq.Context()
        self._owns_context = context is None
        self.socket = self.context.socket(kind)
        self.socket.linger = LINGER
        self.socket.maxmsgsize = max_bytes
        self.socket.ipv6 = True
        self.monitor = self.socket.get_monitor_socket(watched)
        self._peer_on: dict[int, int] = {}  # file descriptor of a connection -> agent's index
        self._connection_of: dict[int, int] = {}  # and back
        self.refused = 0  # failed handshakes: the other side does not have the job's keys
        self.reached = False  # a handshake has succeeded

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        return [self.socket, self.monitor]

    def receive(self, ready: Container[object]) -> list[Item]:
        """Return everything that is there on those of the sockets that are `ready`."""
        events: list[Item] = []
        while self.socket in ready:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            events += self._read(frames)
        while self.monitor in ready and self.monitor.poll(0):
            frame, name = self.monitor.recv_multipart()
            endpoint = name.decode()
            what, value = struct.unpack("=hi", frame)
            if what == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.reached = True
                events += self._handshake(endpoint)
            elif what == zmq.EVENT_DISCONNECTED:
                if (index := self._peer_on.pop(value, None)) is not None:
                    events.append(Closed(index))
            else:
                self._note(what, value, endpoint)
        return events

    def _note(self, what: int, value: int, _endpoint: str) -> None:
        """Count a handshake that failed because of its keys. Other programs fail otherwise."""
        is_about_keys = value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
        if what == zmq.EVENT_HANDSHAKE_FAILED_AUTH or is_about_keys:
            self.refused += 1

    def _handshake(self, _endpoint: str) -> list[Item]:
        return []

    @abstractmethod
    def _read(self, frames: list[zmq.Frame]) -> list[Item]:
        """Return the items of one message; none if it is not for this end."""

    def _arrived(self, frame: zmq.Frame, sender: int) -> Arrived:
        """Return an item, and remember whose connection it is, for when it is closed."""
        connection = int(frame.get(zmq.SRCFD))
        if self._peer_on.get(connection) != sender:
            before = self._connection_of.get(sender, -1)
            if self._peer_on.get(before) == sender:
                del self._peer_on[before]
            self._peer_on[connection] = sender
            self._connection_of[sender] = connection
            _retransmit_soon(connection)
        address = str(frame.get("Peer-Address")).removeprefix(MAPPED)
        return Arrived(sender, frame.bytes, address)

    def close(self) -> None:
        """Close it. With its own context, wait up to LINGER until the last messages are sent."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close()
        if self._owns_context:
            self.context.term()


def new_authenticator(context: zmq.Context[Any]) -> zmq.Socket[bytes]:
    """Return the socket that gets the credentials of all who connect to this context's sockets."""
    zap: zmq.Socket[bytes] = context.socket(zmq.REP)
    zap.linger = 0
    zap.bind(_ZAP)
    return zap


def authenticate(zap: zmq.Socket[bytes], admit: Callable[[Sequence[bytes]], bool]) -> None:
    """Accept only those whose credentials, after their mechanism, are admitted: ZAP
    (rfc.zeromq.org/spec/27).
    """
    while zap.poll(0):
        version, request, _domain, _address, _id, *theirs = zap.recv_multipart()
        status = [b"200", b"OK"] if admit(theirs) else [b"400", b"not of this job"]
        zap.send_multipart([version, request, *status, b"", b""])


class HeadChannel(Channel):
    """The end to which others report, of agent number `me`."""

    def __init__(
        self,
        keys: Keys,
        agents: int,
        max_bytes: int,
        me: int = HEAD,
        context: zmq.Context[Any] | None = None,
    ) -> None:
        super().__init__(zmq.ROUTER, max_bytes, _WATCHED, context)
        self.me = me
        self.agents = agents
        self.keys = keys
        self._numbers: dict[bytes, int] = {}  # name -> number, of those without an index
        # Agent -> routing id of its last message. If the agent has just dropped that connection,
        # messages to it are lost until it reports again.
        self._heard_on: dict[int, bytes] = {}
        self.zap = new_authenticator(self.context)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.socket.curve_server = True
        self.socket.curve_secretkey = keys.head_secret
        self.socket.handshake_ivl = HANDSHAKE
        self.socket.backlog = BACKLOG
        self.port = self._listen()

    def _listen(self) -> int:
        for port in self.keys.ports:
            with contextlib.suppress(zmq.ZMQError):
                self.socket.bind(f"tcp://*:{port}")
                return port
        self.close()
        tried = ", ".join(map(str, self.keys.ports))
        raise UsageError(f"none of this job's ports is free on {socket.gethostname()}: {tried}")

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        return [*super().sockets, self.zap]

    def receive(self, ready: Container[object]) -> list[Item]:
        if self.zap in ready:
            authenticate(self.zap, self.keys.admit)
        return super().receive(ready)

    def _read(self, frames: list[zmq.Frame]) -> list[Item]:
        routing_id = frames[0].bytes
        index = self._index_of(routing_id.partition(ADDRESS)[0])
        if len(frames) != 2 or index is None:
            return []  # a task that Slurm did not announce, or a surplus one
        self._heard_on[index] = routing_id
        return [self._arrived(frames[1], index)]

    def _index_of(self, name: bytes) -> int | None:
        if not name.startswith(NO_PLACE):
            index = int(name) if name.isdigit() and len(name) < 8 else self.me
            return index if index < self.agents and index != self.me else None
        return self._numbers.setdefault(name, self.agents + len(self._numbers))

    def send(self, to: int, data: bytes) -> None:
        routing_id = self._heard_on.get(to, str(to).encode())
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart([routing_id, data], zmq.NOBLOCK)

    def close(self) -> None:
        self.zap.close()
        super().close()


def _address_and_port(endpoint: str) -> tuple[str, str]:
    address, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    # libzmq writes IPv4 addresses as mapped ones once it connects again.
    return address.strip("[]").removeprefix(MAPPED), port


class MemberChannel(Channel):
    """The end that reports to agent number `to`, whose keys and addresses these are."""

    def __init__(
        self,
        keys: Keys,
        index: int | None,
        addresses: Iterable[str],
        max_bytes: int,
        to: int = HEAD,
        context: zmq.Context[Any] | None = None,
    ) -> None:
        super().__init__(zmq.DEALER, max_bytes, _WATCHED_BY_MEMBER, context)
        self.to = to
        self._reached_at = ""
        self._connected_at: dict[tuple[str, str], float] = {}  # by address and port
        self._closing: set[tuple[str, str]] = set()  # where the last connection was closed at once
        self._name = NO_PLACE + os.urandom(8).hex().encode() if index is None else b"%d" % index
        self._addresses: list[str] = []  # of the head, in the order of their numbers
        # Messages go only to connections that have completed the handshake.
        self.socket.immediate = True
        self.socket.reconnect_ivl = RECONNECT
        self.socket.reconnect_ivl_max = RECONNECT_MAX
        self.socket.curve_serverkey = keys.head_public
        self.socket.curve_publickey = keys.member_public
        self.socket.curve_secretkey = keys.member_secret
        self._ports = keys.ports
        self._candidates: dict[tuple[str, int], str] = {}
        self.connect(addresses)

    def connect(self, addresses: Iterable[str]) -> None:
        """Try these addresses of the other end as well."""
        for address in addresses:
            if address not in self._addresses:
                self._addresses.append(address)
            number = self._addresses.index(address)
            # For the connections from here on.
            self.socket.routing_id = self._name + (ADDRESS + b"%d" % number if number else b"")
            for port in self._ports:
                endpoint = f"tcp://{f'[{address}]' if ':' in address else address}:{port}"
                self._candidates[address, port] = endpoint
                self.socket.connect(endpoint)

    def _read(self, frames: list[zmq.Frame]) -> list[Item]:
        settled: list[Item] = []
        if len(self._candidates) > 1:
            settled = self._settle_on(int(frames[-1].get(zmq.SRCFD)))
        return [*settled, self._arrived(frames[-1], self.to)]

    def _handshake(self, endpoint: str) -> list[Item]:
        self._reached_at, _ = _address_and_port(endpoint)
        return [Reached(self.to, self._reached_at)]

    def _note(self, what: int, value: int, endpoint: str) -> None:
        """Note also a connection that was closed at once, as an agent with other keys does. An
        agent that is too busy closes it after HANDSHAKE, and one that has died soon accepts none.
        """
        super()._note(what, value, endpoint)
        now, target = time.monotonic(), _address_and_port(endpoint)
        if what == zmq.EVENT_CONNECTED:
            self._connected_at[target] = now
        elif what == zmq.EVENT_CLOSED:  # no connection was possible
            self._closing.discard(target)
        elif what == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            lasted = 1000 * (now - self._connected_at.get(target, 0.0))
            if lasted < HANDSHAKE / 2:
                self._closing.add(target)

    @property
    def is_refused(self) -> bool:
        """Return whether the other end seems to have other keys."""
        return self.refused > 0 or bool(self._closing)

    @property
    def targets(self) -> list[tuple[str, int]]:
        """Addresses and ports where the other end may listen; one once it has answered."""
        return list(self._candidates)

    def _settle_on(self, connection: int) -> list[Item]:
        """Drop the other candidates: the head has answered on one."""
        try:
            with socket.socket(fileno=os.dup(connection)) as s:
                address, port = s.getpeername()[:2]
        except OSError:
            return []  # closed meanwhile
        address = address.removeprefix(MAPPED)
        if (address, port) not in self._candidates:
            return []
        for candidate, endpoint in list(self._candidates.items()):
            if candidate != (address, port):
                self.socket.disconnect(endpoint)
                del self._candidates[candidate]
        # The last handshake may have been at another address.
        return [] if address == self._reached_at else [Reached(self.to, address)]

    def send(self, to: int, data: bytes) -> None:
        assert to == self.to, "one channel for each agent that is reported to"
        with contextlib.suppress(zmq.Again):
            self.socket.send(data, zmq.NOBLOCK)
