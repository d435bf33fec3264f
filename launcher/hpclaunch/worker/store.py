"""The round's c10d store, on the node of rank 0: its socket, and the process that serves it."""

import os
import signal
import socket


class Store:
    """A listening socket, and a process forked from the template that takes it over.

    Both are new in every round: a store that is used twice hands out addresses of the last round.
    Connections that are made before the process is there wait in the socket's backlog.
    """

    def __init__(self):
        self.pid = 0  # of the process that holds this round's
        self.port = 0  # of this round's
        self.asked = False  # that process is being forked
        self.errors = ""  # the file for that process's errors
        self.wanted = False  # somebody is to take the socket over
        self._socket: socket.socket | None = None
        self._listening = 0  # the port of that socket, which may be the next round's

    def fileno(self):
        return -1 if self._socket is None else self._socket.fileno()

    def listen(self, loopback):
        """The port at which the workers of all nodes will look for the store."""
        self.close()
        if loopback:
            self._socket = socket.create_server(("127.0.0.1", 0), backlog=4096)
        elif socket.has_dualstack_ipv6():
            family = socket.AF_INET6
            self._socket = socket.create_server(
                ("", 0), family=family, backlog=4096, dualstack_ipv6=True
            )
        else:
            self._socket = socket.create_server(("", 0), backlog=4096)
        self._listening = self._socket.getsockname()[1]
        return self._listening

    def begin(self, errors):
        """A round begins; `errors` is "" when another node has its store. The last round's store
        ends only now, so that nobody has seen it break while that round ended."""
        self.end()
        self.errors = errors
        self.wanted = bool(errors)
        self.port = self._listening
        if not self.wanted:
            self.close()

    def close(self):
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self.wanted = False

    def end(self):
        self.asked = False
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.pid = 0
