"""The stagers of several nodes. Each serves the files of its node (`node.py`) to the others, over
ZeroMQ with CURVE: only a holder of the launch's key completes a handshake. Pieces of files have a
socket of their own (`pieces.py`).

A request is answered once a second until it has been served. A leader's requests have its term;
those of an earlier leader are refused, and what is still being done for it is given up.

Threads serve the requests of others, so nothing here blocks the stager. `remote_node.py` sends
requests. A node that fetches asks for STREAMS pieces of files at a time, which limits the memory
that a fetch takes on both sides.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import zmq

from hpclaunch.system.network import zmq_channel
from hpclaunch.system.shared import open_file_limit, packing

from .fetching import Data
from .messages import PeerPlace
from .node import StageNode
from .orders import LIMIT, Address, AskPieces, Cancel, Hurry, Job, Reply, Request, packed, perform
from .pieces import KEY, USER, Cipher, PiecesPlace, Read, failure_of
from .pieces import LIMIT as PIECES_LIMIT
from .remote_node import RemoteNode

SAY = 1.0  # seconds between two messages that a request is being served
CLOSING = 5.0  # seconds
SERVING = 32  # orders that are served at the same time
READING = 8  # pieces that are read at the same time
IO_THREADS = 4  # which send and receive
SOCKETS = 1 << 14
TOKENS = 1 << 14  # of connections for pieces that are yet to come


class _Job(Job):
    """A request that is being served."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self.request = request
        self.served: Future[None] | None = None


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
        self._lock = threading.Lock()  # of the term and the strangers
        self._strangers: dict[int, RemoteNode] = {}  # sources that a leader has named, by index
        self._jobs: dict[bytes, _Job] = {}  # by the routing ids of connections
        self._replies: deque[tuple[bytes, bytes]] = deque()
        self._answers: deque[list[Data]] = deque()  # pieces, each after the one who has asked
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._pool = ThreadPoolExecutor(SERVING)  # of orders, which may wait for storage
        self._readers = ThreadPoolExecutor(READING)
        self._zap = zmq_channel.new_authenticator(self.context)
        self._socket = self._router(LIMIT)
        self._socket.curve_server = True
        self._socket.curve_secretkey = self.keys.head_secret
        self.port = self._socket.bind_to_random_port("tcp://*")
        self._piece_socket = self._router(PIECES_LIMIT)
        self._piece_socket.plain_server = True
        self._piece_port = self._piece_socket.bind_to_random_port("tcp://*")
        self._key = os.urandom(KEY)
        self._cipher = Cipher(self._key)
        self._tokens = deque[bytes](maxlen=TOKENS)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _router(self, limit: int) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.ipv6 = True
        socket.maxmsgsize = limit
        socket.router_mandatory = True
        socket.handshake_ivl = zmq_channel.HANDSHAKE
        socket.backlog = zmq_channel.BACKLOG
        return socket

    # Leading

    def lead(self, term: int, index: int, peers: Iterable[PeerPlace]) -> None:
        """Lead these peers from now on. `index` is that of this node."""
        self._obey(max(term, self.term))
        self.led_term, self._index = term, index
        before, self.peers = self.peers, {}
        for peer in peers:
            place, known = (peer.address, peer.port), before.get(peer.index)
            if known is not None and known.place == place:
                self.peers[peer.index] = before.pop(peer.index)
            else:
                self.peers[peer.index] = RemoteNode(self, place, peer.index, peer.leader)
        for known in before.values():
            known.close()

    def follow(self) -> None:
        """Lead no longer."""
        self.lead(self.led_term, self._index, ())

    def places(self, leader: str) -> Mapping[int, Address]:
        """Return where all nodes listen, for a peer that reaches this one at address `leader`."""
        return {self._index: (leader, self.port), **{i: p.place for i, p in self.peers.items()}}

    # Serving

    def _serve(self) -> None:
        poller = zmq.Poller()
        for each in (self._socket, self._piece_socket, self._zap, self._wake):
            poller.register(each, zmq.POLLIN)
        due = 0.0
        while not self.is_closed:
            ready = dict(poller.poll(int(SAY * 1000)))
            if self._zap in ready:
                zmq_channel.authenticate(self._zap, self._admit)
            if self._socket in ready:
                self._receive()
            if self._piece_socket in ready:
                self._receive_questions()
            if self._wake in ready:
                os.eventfd_read(self._wake)
            while self._replies:
                who, reply = self._replies.popleft()
                del self._jobs[who]
                _send(self._socket, [who, reply])
            while self._answers:
                _send(self._piece_socket, self._answers.popleft())
            if (now := time.monotonic()) >= due:
                due = now + SAY
                for who, job in self._jobs.items():
                    reply = packed(Reply(is_last=False, done=job.done_bytes))
                    if not _send(self._socket, [who, reply]):
                        job.cancel()
        for each in (self._socket, self._piece_socket, self._zap):
            each.close()

    def _admit(self, credentials: Sequence[bytes]) -> bool:
        """Return whether these are of a stager of this launch. A token counts once."""
        if credentials[:2] != [b"PLAIN", USER]:
            return self.keys.admit(credentials)
        if is_known := credentials[2] in self._tokens:
            self._tokens.remove(credentials[2])
        return is_known

    def _new_place(self) -> PiecesPlace:
        """Return what another stager needs for a connection for pieces."""
        self._tokens.append(token := os.urandom(KEY))
        return PiecesPlace(self._piece_port, self._key, token)

    def _receive_questions(self) -> None:
        """Begin to answer all questions for pieces that are there."""
        while True:
            try:
                who, *question = self._piece_socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if (what := self._cipher.asked(question)) is not None:
                self._readers.submit(self._answer, who, question, what)

    def _answer(self, who: bytes, question: Sequence[bytes], what: Read) -> None:
        self._answers.append([who, *self._cipher.answer(self._node, question, what)])
        os.eventfd_write(self._wake, 1)

    def _receive(self) -> None:
        """Begin to serve all requests that are there."""
        while True:
            try:
                who, data = self._socket.recv_multipart(zmq.NOBLOCK)
                request = packing.unpack(data, Request)
            except zmq.Again:
                return
            except (ValueError, RecursionError):  # not of this version
                continue
            job = self._jobs.get(who)
            match request.what:
                case AskPieces():
                    _send(self._socket, [who, packed(Reply(True, pieces=self._new_place()))])
                case Cancel() if job is not None:
                    job.cancel()
                case Hurry(on=on) if job is not None:
                    job.hurry(on=on)
                case Cancel() | Hurry():  # it is done
                    pass
                case _ if job is None:
                    self._jobs[who] = job = _Job(request)
                    job.served = self._pool.submit(self._work, who, job)

    def _work(self, who: bytes, job: _Job) -> None:
        """Serve a request."""
        try:
            reply = packed(self._perform(job))
        except Exception as e:  # a reply is due in any case
            reply = packed(Reply(is_last=True, failure=failure_of(e)))
        self._replies.append((who, reply))
        os.eventfd_write(self._wake, 1)

    def _perform(self, job: _Job) -> Reply:
        node, request = self._node, job.request
        what = request.what
        assert not isinstance(what, AskPieces | Hurry | Cancel), "they are no jobs"
        self._obey(request.term)
        others = {index: self._stranger(index, place) for index, place in request.places.items()}
        found = perform(what, node, {**others, request.index: node}, job.between)
        return Reply(is_last=True, inventory=found)

    def _stranger(self, index: int, place: Address) -> RemoteNode:
        with self._lock:
            known = self._strangers.get(index)
            if known is None or known.place != place:
                if known is not None:
                    known.close()  # that stager was lost
                self._strangers[index] = known = RemoteNode(self, place)
            return known

    def _obey(self, term: int) -> None:
        """Cancel requests of leaders with lower terms, and refuse them from now on. Raises
        ConnectionRefusedError if this term is lower than one before.
        """
        with self._lock:
            if term < self.term:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "another stager leads")
            self.term = term
        for job in list(self._jobs.values()):
            if job.request.term < term:
                job.cancel()

    def close(self) -> None:
        """Stop serving and waiting for others. Cancel what is being done for them, and
        wait at most CLOSING until it has ended. A second call does nothing.
        """
        if self.is_closed:
            return
        self.is_closed = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        for job in self._jobs.values():
            job.cancel()
        for pool in (self._pool, self._readers):
            pool.shutdown(wait=False, cancel_futures=True)
        wait([job.served for job in self._jobs.values() if job.served], CLOSING)
        for each in (*self.peers.values(), *self._strangers.values()):
            each.close()
        threading.Thread(target=self.context.term, daemon=True).start()


def _send(socket: zmq.Socket[bytes], frames: Sequence[Data]) -> bool:
    """Send a reply. Return False if the one who has asked is gone."""
    try:
        socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
    except zmq.Again:  # it does not read
        pass
    except zmq.ZMQError as e:
        if e.errno != errno.EHOSTUNREACH:
            raise
        return False
    return True
