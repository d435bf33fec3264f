"""A relay between two stagers."""

import contextlib
import socket
import threading


class Relay:
    """A port that stands for another one on this machine, `to`. It keeps the bytes that it has
    `seen`, and can close all connections.
    """

    def __init__(self, to):
        self.to, self.seen, self._ends = to, bytearray(), []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                pair = self._server.accept()[0], socket.create_connection(("127.0.0.1", self.to))
                self._ends += pair
                for one, other in (pair, pair[::-1]):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                self.seen += data
                other.sendall(data)
            other.shutdown(socket.SHUT_RDWR)

    def cut(self):
        for end in self._ends:
            with contextlib.suppress(OSError):  # closed by its peer
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._ends = []

    def close(self):
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
