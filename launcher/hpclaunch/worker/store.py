"""The round's c10d store, on the node of rank 0: its socket, and the process that serves it."""

from __future__ import annotations

import atexit
import os
import signal
import socket
from collections.abc import Iterable

from .guarded_port import BACKLOG, GuardedPort, listen

HERE = ("127.0.0.0/8", "::1")  # addresses of connections within a node


class Store:
    """A listening socket, and a process forked from the template that takes it over.

    Both are new in every round: a store that is used twice has addresses of the last round.
    Connections that are made before the process is started wait in the socket's backlog.

    A client of a TCPStore can read and write everything in it. So only the nodes of the round can
    connect, or with one node, only processes there.
    """

    def __init__(self) -> None:
        self.pid = 0  # of the process that serves this round's store
        self.port = 0  # of this round's store
        self.asked = False  # the process is being forked
        self.errors = ""  # the file for that process's errors
        self.wanted = False  # a process is to take the socket over
        self._socket: socket.socket | None = None
        self._listening = 0  # the port of that socket, which may be the next round's
        self._guard: GuardedPort | None = None  # of that port
        self._guard_of_round: GuardedPort | None = None  # of the store's port
        self._peers: tuple[str, ...] = HERE  # the networks that could connect last
        atexit.register(self.unguard_round)
        atexit.register(self.close)

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def listen(self, loopback: bool) -> int:
        """Open a socket for the next store. Return its port."""
        self.close()
        if loopback:
            self._socket = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        else:  # at all addresses, since it is not known yet which one all nodes can reach
            try:
                # The nodes of the last round are likely in the next one, and can connect at once.
                self._guard = GuardedPort(self._peers)
                self._socket = self._guard.socket
            except OSError:
                self._socket = listen(0)
        self._listening = int(self._socket.getsockname()[1])
        return self._listening

    def begin(self, errors: str, peers: Iterable[str]) -> None:
        """Begin a round; `errors` is "" when another node has its store. `peers` are the networks
        of its nodes. The last round's store ends only now, so that no worker of that round saw it
        break."""
        self.end()
        self.errors = errors
        self.wanted = bool(errors)
        self.port = self._listening
        if not self.wanted:
            self.close()
            return
        self._peers = (*HERE, *peers)
        self._guard_of_round, self._guard = self._guard, None
        if self._guard_of_round is not None:
            try:
                self._guard_of_round.admit(self._peers)
            except OSError:
                self.unguard_round()

    def begin_fork(self) -> None:
        """Record that the template has the socket, and forks the process that serves the store."""
        self.close()
        self.asked = True

    def forked(self, pid: int) -> None:
        self.pid, self.asked = pid, False

    def lost(self) -> None:
        """Record that nobody serves the store any longer."""
        self.pid, self.asked = 0, False
        self.unguard_round()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self.wanted = False
        if self._guard is not None:
            self._guard.close()
        self._guard = None

    def end(self) -> None:
        self.asked = False
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.pid = 0
        self.unguard_round()

    def unguard_round(self) -> None:
        """Remove the guard of the round's store: without a process, connections are refused."""
        if self._guard_of_round is not None:
            self._guard_of_round.close()
        self._guard_of_round = None
