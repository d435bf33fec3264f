"""Another node, as a stager reaches it: a thread waits for the reply to each request.

A connection carries one request at a time. It is answered once a second until it has been served,
so a node that is silent is lost.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import zmq

from hpclaunch.core.staging.files import Identity
from hpclaunch.system.shared import packing

from .copying import GivenUpError
from .fetching import STREAMS, Data
from .orders import LIMIT, Address, Call, Cancel, Fetch, Hurry, Order, Read, Reply, Request, packed

if TYPE_CHECKING:
    from .mesh import Mesh

SILENCE = 10.0  # seconds without a message until a node is lost
TICK = 0.1  # seconds until a call that is cancelled or urgent is noticed
_LOST = (
    zmq.EVENT_CLOSED  # refused by the host
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class RemoteNode:
    """Another node's stager."""

    def __init__(self, mesh: Mesh, place: Address, index: int = -1, leader: str = "") -> None:
        self.place = place
        self._mesh, self._index, self._leader = mesh, index, leader
        self._idle: deque[_Connection] = deque()

    def read(self, name: str, kept: str, identity: Identity, offset: int, length: int) -> Data:
        """Return bytes of a file, as `StageNode.read` does; also raises what a `Call` raises."""
        request = Request(self._mesh.led_term, Read(name, kept, identity, offset, length))
        return self._send(Call(), request)[1]

    def ask(self, order: Order) -> Call[Any]:
        places = {}
        if isinstance(order, Fetch):
            known = self._mesh.places(self._leader)
            sources = {each.source for each in order.transfers} & known.keys() - {self._index}
            places = {index: known[index] for index in sources}
        request = Request(self._mesh.led_term, order, self._index, places)
        call = Call[Any]()
        call.start(lambda: self._send(call, request)[0].inventory)
        return call

    def _send(self, call: Call[Any], request: Request) -> tuple[Reply, Data]:
        """Send a request, and wait for its reply."""
        try:
            connection, reply = self._connection(), None
            try:
                reply, data = connection.request(call, request)
            finally:
                if reply is not None and len(self._idle) < STREAMS:
                    self._idle.append(connection)
                else:
                    connection.close()
                if self._mesh.is_closed:
                    self.close()
        except zmq.ZMQError as e:  # the context is closed
            raise ConnectionAbortedError(errno.ECONNABORTED, "connection closed") from e
        if (failure := reply.failure) is not None:
            if failure.number is None:
                raise GivenUpError(failure.why)
            raise OSError(failure.number, failure.why, failure.name or None)
        return reply, data

    def _connection(self) -> _Connection:
        with contextlib.suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if not connection.is_lost():
                    return connection
                connection.close()
        return _Connection(self._mesh, self.place)

    def close(self) -> None:
        """Close the connections that are not in use."""
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()


class _Connection:
    """A connection for one request after the other, used by one thread at a time."""

    def __init__(self, mesh: Mesh, place: Address) -> None:
        self._mesh, (self._address, port) = mesh, place
        self._socket = mesh.context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.ipv6 = True
        self._socket.maxmsgsize = LIMIT
        self._socket.reconnect_ivl = -1
        self._socket.curve_serverkey = mesh.keys.head_public
        self._socket.curve_publickey = mesh.keys.member_public
        self._socket.curve_secretkey = mesh.keys.member_secret
        self._monitor = self._socket.get_monitor_socket(_LOST)
        self._poller = zmq.Poller()
        for each in (self._socket, self._monitor):
            self._poller.register(each, zmq.POLLIN)
        host = f"[{self._address}]" if ":" in self._address else self._address
        self._socket.connect(f"tcp://{host}:{port}")

    def is_lost(self) -> bool:
        return bool(self._monitor.poll(0))

    def request(self, call: Call[Any], request: Request) -> tuple[Reply, Data]:
        """Send a request, and wait for its reply. Raises OSError if there is none."""
        self._send(request)
        is_urgent = is_cancelled = False
        until = time.monotonic() + SILENCE
        while not self._mesh.is_closed:
            if call.is_cancelled > is_cancelled:
                is_cancelled = True
                self._send(Request(request.term, Cancel()))
            if call.is_urgent != is_urgent:
                is_urgent = call.is_urgent
                self._send(Request(request.term, Hurry(is_urgent)))
            ready = dict(self._poller.poll(int(TICK * 1000)))
            if self._socket in ready:
                header, *data = self._socket.recv_multipart(copy=False)
                reply = packing.unpack(header.bytes, Reply)
                if reply.is_last:
                    return reply, data[0].buffer
                call.done_bytes = reply.done
                until = time.monotonic() + SILENCE
            elif self._monitor in ready:
                raise ConnectionResetError(errno.ECONNRESET, "connection lost", self._address)
            elif time.monotonic() >= until:
                raise TimeoutError(errno.ETIMEDOUT, "no answer", self._address)
        raise zmq.ContextTerminated

    def _send(self, request: Request) -> None:
        try:
            self._socket.send(packed(request), zmq.NOBLOCK)
        except zmq.Again:
            raise ConnectionResetError(errno.ECONNRESET, "connection lost", self._address) from None

    def close(self) -> None:
        with contextlib.suppress(zmq.ContextTerminated):
            self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
