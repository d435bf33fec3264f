"""The c10d store of a round, on the node of rank 0: its socket, and the process that holds it."""

import os
import signal
import socket


class Store:
    """A socket listens, a process of the template's takes it over; both are new in every round.

    A store that is used twice hands out the addresses of the last round's dead. Connections made
    before a process is there wait in the socket's backlog.
    """

    def __init__(self):
        self.pid = 0  # of the process that holds this round's
        self.port = 0  # of this round's
        self.asked = False  # that process is being forked
        self.errors = ""  # where that process writes its own
        self.wanted = False  # somebody is to take the socket over
        self._socket: socket.socket | None = None
        self._listening = 0  # the port of that socket, which may be the next round's

    def fileno(self):
        return -1 if self._socket is None else self._socket.fileno()

    def listen(self, loopback):
        """The port, on which the workers of all nodes will look for the store."""
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
        """A round begins; "" when another node has its store. The last one's goes only now, so
        that nobody saw it break while the round ended."""
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
