"""Another node, as a stager reaches it: a thread waits for the reply to each request.

A connection carries one request at a time. An order is answered once a second until it has been
served, and a piece of a file takes no time, so a node that is silent is lost.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import zmq

from hpclaunch.core.staging.files import Identity
from hpclaunch.system.shared import packing

from .fetching import PIECE, STREAMS, Data
from .orders import (
    LIMIT,
    Address,
    AskPieces,
    Call,
    Cancel,
    Fetch,
    Hurry,
    Order,
    Reply,
    Request,
    packed,
)
from .pieces import USER, Cipher, Failure, PiecesPlace, Read

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
        self._idle, self._idle_readers = deque[_Connection](), deque[_Connection]()

    def read(self, name: str, kept: str, identity: Identity, offset: int, length: int) -> Data:
        """Return bytes of a file, as `StageNode.read` does; also raises what a `Call` raises."""
        with self._borrowed(self._idle_readers, self._reader) as connection:
            answer = connection.ask(Read(name, kept, identity, offset, length))
        if isinstance(answer, Failure):
            raise answer.raised()
        return answer

    def _reader(self) -> _Connection:
        """Return a new connection for pieces of files."""
        pieces = self._send(Call(), Request(self._mesh.led_term, AskPieces())).pieces
        assert pieces is not None, "they were asked for"
        return _Connection(self._mesh, self.place, pieces)

    def ask(self, order: Order) -> Call[Any]:
        places = {}
        if isinstance(order, Fetch):
            known = self._mesh.places(self._leader)
            sources = {each.source for each in order.transfers} & known.keys() - {self._index}
            places = {index: known[index] for index in sources}
        request = Request(self._mesh.led_term, order, self._index, places)
        call = Call[Any]()
        call.start(lambda: self._send(call, request).inventory)
        return call

    def _send(self, call: Call[Any], request: Request) -> Reply:
        """Send a request, and wait for its reply."""
        make = partial(_Connection, self._mesh, self.place)
        with self._borrowed(self._idle, make) as connection:
            reply = connection.request(call, request)
        if reply.failure is not None:
            raise reply.failure.raised()
        return reply

    @contextlib.contextmanager
    def _borrowed(
        self, idle: deque[_Connection], make: Callable[[], _Connection]
    ) -> Iterator[_Connection]:
        """Have a connection, and keep it for the next request unless something is raised."""
        try:
            connection, is_well = self._idle_one(idle), False
            connection = connection or make()
            try:
                yield connection
                is_well = True
            finally:
                if is_well and len(idle) < STREAMS:
                    idle.append(connection)
                else:
                    connection.close()
                if self._mesh.is_closed:
                    self.close()
        except zmq.ZMQError as e:  # the context is closed
            raise ConnectionAbortedError(errno.ECONNABORTED, "connection closed") from e

    def _idle_one(self, idle: deque[_Connection]) -> _Connection | None:
        with contextlib.suppress(IndexError):
            while True:
                connection = idle.pop()
                if not connection.is_lost():
                    return connection
                connection.close()
        return None

    def close(self) -> None:
        """Close the connections that are not in use."""
        for idle in (self._idle, self._idle_readers):
            with contextlib.suppress(IndexError):
                while True:
                    idle.pop().close()


class _Connection:
    """A connection for one request after the other, used by one thread at a time."""

    def __init__(self, mesh: Mesh, place: Address, pieces: PiecesPlace | None = None) -> None:
        """Connect for orders, or for pieces of files, which are encrypted already."""
        self._mesh, (self._address, port) = mesh, place
        self._socket = mesh.context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.ipv6 = True
        self._socket.reconnect_ivl = -1
        if pieces is not None:
            port, self._cipher = pieces.port, Cipher(pieces.key)
            self._socket.maxmsgsize = 2 * PIECE
            self._socket.plain_username, self._socket.plain_password = USER, pieces.token
        else:
            self._socket.maxmsgsize = LIMIT
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

    def request(self, call: Call[Any], request: Request) -> Reply:
        """Send a request, and wait for its reply. Raises OSError if there is none."""
        self._send([packed(request)])
        is_urgent = is_cancelled = False
        until = time.monotonic() + SILENCE
        while True:
            if call.is_cancelled > is_cancelled:
                is_cancelled = True
                self._send([packed(Request(request.term, Cancel()))])
            if call.is_urgent != is_urgent:
                is_urgent = call.is_urgent
                self._send([packed(Request(request.term, Hurry(is_urgent)))])
            if (frames := self._receive(until)) is not None:
                reply = packing.unpack(bytes(frames[0]), Reply)
                if reply.is_last:
                    return reply
                call.done_bytes = reply.done
                until = time.monotonic() + SILENCE

    def ask(self, what: Read) -> Data | Failure:
        """Ask for a piece, and wait for the answer. Raises OSError if there is none."""
        self._send(question := self._cipher.question(what))
        until = time.monotonic() + SILENCE
        while (frames := self._receive(until)) is None:
            pass
        return self._cipher.answered(question, frames)

    def _receive(self, until: float) -> Sequence[memoryview] | None:
        """Wait TICK at most for a message. Raises OSError if the node is lost, or silent `until`
        now.
        """
        if self._mesh.is_closed:
            raise zmq.ContextTerminated
        ready = dict(self._poller.poll(int(TICK * 1000)))
        if self._socket in ready:
            return [frame.buffer for frame in self._socket.recv_multipart(copy=False)]
        if self._monitor in ready:
            raise ConnectionResetError(errno.ECONNRESET, "connection lost", self._address)
        if time.monotonic() >= until:
            raise TimeoutError(errno.ETIMEDOUT, "no answer", self._address)
        return None

    def _send(self, frames: Sequence[Data]) -> None:
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            raise ConnectionResetError(errno.ECONNRESET, "connection lost", self._address) from None

    def close(self) -> None:
        with contextlib.suppress(zmq.ContextTerminated):
            self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
