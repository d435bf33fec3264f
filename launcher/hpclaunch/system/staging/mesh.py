"""The stagers of several nodes. Each serves the files of its node (`node.py`) to the others, over
ZeroMQ with CURVE: only a holder of the launch's key completes a handshake.

A connection carries one request at a time. It is answered once a second until it has been served,
so a peer that is silent is lost. A leader's requests have its term; those of an earlier leader are
refused, and what is still being done for it is given up.

A thread of its own waits for each reply, and threads of a pool serve the requests of others, so
nothing here blocks the stager. A node that fetches asks for STREAMS pieces of files at a time, so
it has only these in memory, and its sources have them, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import zmq

from hpclaunch.core.staging.generations import Identity, Manifest, Settled
from hpclaunch.system.network import zmq_channel
from hpclaunch.system.shared import open_file_limit, packing

from .copying import THREADS, GivenUpError
from .mesh_messages import (
    Address,
    Cancel,
    Copy,
    Delete,
    Drop,
    Failure,
    Fetch,
    Hurry,
    Keep,
    Lend,
    Look,
    Note,
    Order,
    Read,
    Reply,
    Request,
    Settle,
)
from .messages import PeerPlace
from .node import STREAMS, Data, Entry, Inventory, Source, StageNode, Wanted
from .publishing import DRAFT

SILENCE = 10.0  # seconds without a message until a peer is lost
SAY = 1.0  # seconds between two messages that a request is being served
CLOSING = 5.0  # seconds
TICK = 0.1  # seconds until a call that is cancelled or urgent is noticed
LIMIT = 64 << 20  # bytes of a message
SERVING = 32  # requests that are served at the same time
IO_THREADS = 4  # which encrypt and decrypt
SOCKETS = 1 << 14
_LOST = (
    zmq.EVENT_CLOSED  # refused by the host
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
T = TypeVar("T")


class Call(Future[T]):
    """The future of a request to a peer. It raises what the peer raises, and OSError if the peer is
    silent or lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self.done_bytes = 0
        self.is_urgent = False  # the peer copies without pauses
        self.is_given_up = False

    def cancel(self) -> bool:
        """Have the peer give up. The call raises GivenUpError once the peer has stopped."""
        self.is_given_up = True
        return not self.done()


class RemoteNode:
    """Another node's stager, with the methods of its `StageNode`. `read` waits for the reply."""

    def __init__(self, mesh: Mesh, place: Address, index: int = -1, leader: str = "") -> None:
        self.place = place
        self._mesh, self._index, self._leader = mesh, index, leader
        self._idle: deque[_Connection] = deque()

    def read(self, name: str, kept: str, identity: Identity, offset: int, length: int) -> Data:
        return self._request(Call(), Read(name, kept, identity, offset, length))[1]

    def inventory(self) -> Call[Inventory]:
        return self._begin(Look(), lambda reply: reply.inventory)

    def copy(
        self,
        entries: Sequence[Entry],
        essential: Iterable[str],
        drafted: str,
        *,
        in_memory: bool = False,
    ) -> Call[None]:
        name = os.path.basename(drafted)
        return self._begin(Copy(tuple(entries), tuple(essential), name, in_memory))

    def fetch(self, wanted: Sequence[Wanted], generation: str) -> Call[None]:
        places = self._mesh.places(self._leader)
        sources = {each.source for each in wanted} & places.keys() - {self._index}
        others = {index: places[index] for index in sources}
        return self._begin(Fetch(tuple(wanted), generation, self._index, others))

    def keep(self, manifest: Manifest) -> Call[None]:
        return self._begin(Keep(manifest))

    def lend(self, entries: Iterable[Entry]) -> Call[None]:
        return self._begin(Lend(tuple(entries)))

    def drop(self, generation: str) -> Call[None]:
        return self._begin(Drop(generation))

    def delete(self, entries: Iterable[Entry]) -> Call[None]:
        return self._begin(Delete(tuple(entries)))

    def settle(self, settled: Settled) -> Call[None]:
        return self._begin(Settle(settled))

    def note(self, record: str) -> Call[None]:
        return self._begin(Note(record))

    def _begin(
        self, request: Request, result: Callable[[Reply], Any] = lambda _: None
    ) -> Call[Any]:
        call = Call[Any]()

        def run() -> None:
            try:
                call.set_result(result(self._request(call, request)[0]))
            except Exception as e:
                call.set_exception(e)

        threading.Thread(target=run, daemon=True).start()
        return call

    def _request(self, call: Call[Any], request: Request) -> tuple[Reply, Data]:
        try:
            connection, reply = self._connection(), None
            try:
                reply, data = connection.request(call, Order(self._mesh.led_term, request))
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

    def request(self, call: Call[Any], order: Order) -> tuple[Reply, Data]:
        """Send a request, and wait for its reply. Raises OSError if there is none."""
        self._send(order)
        is_urgent = is_given_up = False
        until = time.monotonic() + SILENCE
        while not self._mesh.is_closed:
            if call.is_given_up > is_given_up:
                is_given_up = True
                self._send(Order(order.term, Cancel()))
            if call.is_urgent != is_urgent:
                is_urgent = call.is_urgent
                self._send(Order(order.term, Hurry(is_urgent)))
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

    def _send(self, order: Order) -> None:
        try:
            self._socket.send(_packed(order), zmq.NOBLOCK)
        except zmq.Again:
            raise ConnectionResetError(errno.ECONNRESET, "connection lost", self._address) from None

    def close(self) -> None:
        with contextlib.suppress(zmq.ContextTerminated):
            self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()


class _Job:
    """A request that is being served."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.done = 0  # bytes
        self.served: Future[None] | None = None
        self.is_urgent = threading.Event()
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True
        self.is_urgent.set()

    def progress(self, done: int) -> None:
        self.done = done
        if self._is_cancelled:
            raise GivenUpError("it was cancelled")

    def between(self, done: int, took: float) -> int:
        """Pause between two pieces of a copy: this is a `Between`."""
        is_urgent = self.is_urgent.wait(took)
        self.progress(done)
        return THREADS if is_urgent else 1


class Mesh:
    """This node's end: it serves the node's files, and reaches the peers if this node leads."""

    def __init__(self, key: bytes, node: StageNode) -> None:
        """Raises ZMQError if no port is free."""
        open_file_limit.raise_to(0)
        self.term = self.led_term = 0  # the highest that it has seen, and that in which it leads
        self.peers: dict[int, RemoteNode] = {}
        self.is_closed = False
        self.keys = zmq_channel.derive(key, "staging")
        self.context = zmq.Context(IO_THREADS)
        self.context.max_sockets = SOCKETS
        self._node, self._index = node, -1
        self._lock = threading.Lock()  # of the term
        self._strangers: dict[Address, RemoteNode] = {}  # sources that a leader has named
        self._jobs: dict[bytes, _Job] = {}  # by the routing ids of connections
        self._replies: deque[tuple[bytes, Sequence[Data]]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._pool = ThreadPoolExecutor(SERVING)
        self._zap = zmq_channel.new_authenticator(self.context)
        self._socket = self.context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.ipv6 = True
        self._socket.maxmsgsize = LIMIT
        self._socket.router_mandatory = True
        self._socket.curve_server = True
        self._socket.curve_secretkey = self.keys.head_secret
        self._socket.handshake_ivl = zmq_channel.HANDSHAKE
        self._socket.backlog = zmq_channel.BACKLOG
        self.port = self._socket.bind_to_random_port("tcp://*")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    # Leading

    def lead(self, term: int, index: int, peers: Iterable[PeerPlace]) -> None:
        """Lead these peers from now on. `index` is that of this node."""
        self._obey(max(term, self.term))
        self.led_term, self._index = term, index
        before, self.peers = self.peers, {}
        for peer in peers:
            place, known = (peer.address, peer.port), before.pop(peer.index, None)
            if known is None or known.place != place:
                known = RemoteNode(self, place, peer.index, peer.leader)
            self.peers[peer.index] = known
        for known in before.values():
            known.close()

    def follow(self) -> None:
        """Lead no longer."""
        self.lead(self.led_term, self._index, ())

    @property
    def sources(self) -> Mapping[int, Source]:
        """The nodes from which this one can fetch: its peers, and itself."""
        return {**self.peers, self._index: self._node}

    def places(self, leader: str) -> Mapping[int, Address]:
        """Return where all nodes listen, for a peer that reaches this one at address `leader`."""
        return {self._index: (leader, self.port), **{i: p.place for i, p in self.peers.items()}}

    # Serving

    def _serve(self) -> None:
        poller = zmq.Poller()
        for each in (self._socket, self._zap, self._wake):
            poller.register(each, zmq.POLLIN)
        due = 0.0
        while not self.is_closed:
            ready = dict(poller.poll(int(SAY * 1000)))
            if self._zap in ready:
                zmq_channel.authenticate(self._zap, self.keys)
            if self._socket in ready:
                self._receive()
            if self._wake in ready:
                os.eventfd_read(self._wake)
            while self._replies:
                who, frames = self._replies.popleft()
                del self._jobs[who]
                self._send(who, frames)
            if (now := time.monotonic()) >= due:
                due = now + SAY
                for who, job in self._jobs.items():
                    if not self._send(who, [_packed(Reply(is_last=False, done=job.done))]):
                        job.cancel()
        self._socket.close()
        self._zap.close()

    def _send(self, who: bytes, frames: Sequence[Data]) -> bool:
        """Send a reply. Return False if the one who has asked is gone."""
        try:
            self._socket.send_multipart([who, *frames], zmq.NOBLOCK, copy=False)
        except zmq.Again:  # it does not read
            pass
        except zmq.ZMQError as e:
            if e.errno != errno.EHOSTUNREACH:
                raise
            return False
        return True

    def _receive(self) -> None:
        """Begin to serve all requests that are there."""
        while True:
            try:
                who, data = self._socket.recv_multipart(zmq.NOBLOCK)
                order = packing.unpack(data, Order)
            except zmq.Again:
                return
            except (ValueError, RecursionError):  # not of this version
                continue
            job = self._jobs.get(who)
            match order.request:
                case Cancel() if job is not None:
                    job.cancel()
                case Hurry(on=on) if job is not None:
                    (job.is_urgent.set if on else job.is_urgent.clear)()
                case Cancel() | Hurry():  # it is done
                    pass
                case _ if job is None:
                    self._jobs[who] = job = _Job(order)
                    job.served = self._pool.submit(self._work, who, job)

    def _work(self, who: bytes, job: _Job) -> None:
        """Serve a request."""
        data: Data = b""
        try:
            inventory, data = self._perform(job)
            header = _packed(Reply(is_last=True, inventory=inventory))
        except GivenUpError as e:
            header = _failed(str(e), None)
        except OSError as e:
            header = _failed(e.strerror or str(e), e.errno or errno.EIO, str(e.filename or ""))
        except Exception as e:  # a reply is due in any case
            header = _failed(f"{type(e).__name__}: {e}", errno.EIO)
        self._replies.append((who, [header, data]))
        os.eventfd_write(self._wake, 1)

    def _perform(self, job: _Job) -> tuple[Inventory | None, Data]:
        node, request = self._node, job.order.request
        if isinstance(request, Read):
            of = request.name, request.kept, request.identity
            return None, node.read(*of, request.offset, request.length)
        self._obey(job.order.term)
        match request:
            case Look():
                return node.inventory(), b""
            case Copy(entries=entries, essential=essential, drafted=name, in_memory=in_memory):
                if os.sep in name or not name.startswith(DRAFT):
                    raise PermissionError(errno.EPERM, "not the name of a draft", name)
                drafted = os.path.join(node.storage, name)
                of_all = frozenset(essential)
                node.copy(entries, of_all, drafted, job.between, in_memory=in_memory)
            case Fetch(wanted=wanted, generation=generation, me=me, places=places):
                others = {index: self._stranger(place) for index, place in places.items()}
                node.fetch(wanted, generation, {**others, me: node}, job.progress)
            case Keep(manifest=manifest):
                node.keep(manifest)
            case Lend(entries=entries):
                node.lend(entries)
            case Drop(generation=generation):
                node.drop(generation)
            case Delete(entries=entries):
                node.delete(entries)
            case Settle(settled=settled):
                node.settle(settled)
            case Note(record=record):
                node.note(record)
        return None, b""

    def _stranger(self, place: Address) -> RemoteNode:
        return self._strangers.setdefault(place, RemoteNode(self, place))

    def _obey(self, term: int) -> None:
        """Give up what is being done for leaders of lower terms, and refuse them from now on."""
        with self._lock:
            if term < self.term:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "another stager leads")
            self.term = term
        for job in list(self._jobs.values()):
            if job.order.term < term:
                job.cancel()

    def close(self) -> None:
        """Stop serving and waiting for others. What is being done for them is given up, and has
        ended then, unless it takes longer than CLOSING.
        """
        self.is_closed = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        for job in self._jobs.values():
            job.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        wait([job.served for job in self._jobs.values() if job.served], CLOSING)
        for each in (*self.peers.values(), *self._strangers.values()):
            each.close()
        threading.Thread(target=self.context.term, daemon=True).start()


def _packed(message: Order | Reply) -> bytes:
    if len(data := packing.pack(message)) > LIMIT:
        raise OSError(errno.EMSGSIZE, "too many files in one directory")
    return data


def _failed(why: str, number: int | None, name: str = "") -> bytes:
    return _packed(Reply(is_last=True, failure=Failure(why, number, name)))
