"""The board on which the fork server posts the death notice of its agent: it listens at the port
where the agent listened. `death_notices.py` describes what is asked there, and answered.
"""

from __future__ import annotations

import contextlib
import errno
import hmac  # here, not in a function: once the agent is dead, the file system may stall
import os
import select
import socket
import time

from .death_notices import is_question, signed_answer
from .descriptors import Readable
from .guarded_port import listen

POSTED = 5.0  # seconds from the death on
TAKE_OVER = 1.0  # seconds; the port of a dead process is free a moment later
MOST = 64  # connections at once


class NoticeBoard:
    """The board. Its `notice` is b"" if there is none to post, as when the agent ends normally."""

    def __init__(self) -> None:
        self.port, self.notice, self.secret, self.release = 0, b"", b"", b""
        self._socket: socket.socket | None = None
        self._asking: list[socket.socket] = []
        self._until = 0.0

    def prepare(self, port: int, notice: str, secret: str, release: str) -> None:
        """Set the port to listen at, the notice, and the secret that signs questions. `release` is
        the word with which a restarted agent has the notice of its predecessor taken down."""
        self.port, self.secret = port, bytes.fromhex(secret)
        self.notice, self.release = notice.encode(), release.encode()

    def post(self) -> None:
        """Post the notice, since the agent is dead. Nothing reads the output of this process any
        longer."""
        if not self.notice:
            return
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(null)
        self._until = time.monotonic() + POSTED
        limit = time.monotonic() + TAKE_OVER
        while self._socket is None and time.monotonic() < limit:
            try:
                self._socket = listen(self.port)
                self._socket.setblocking(False)
            except OSError as e:
                if e.errno != errno.EADDRINUSE:
                    return
                time.sleep(0.001)

    @property
    def is_posted(self) -> bool:
        return self._socket is not None and time.monotonic() < self._until

    def serve(self, seconds: float, *others: Readable) -> None:
        """Wait at most so many seconds for questions or one of the `others`. Answer questions."""
        listener = self._socket
        ends = [*self._asking] if listener is None else [listener, *self._asking]
        poll = select.poll()
        for each in (*ends, *others):
            poll.register(each, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(1000 * seconds)}
        for end in [end for end in ends if end.fileno() in ready]:
            if end is listener:
                self._accept(listener)
            elif end in self._asking:
                self._answer(end)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            end = listener.accept()[0]
            end.setblocking(False)
            self._asking.append(end)
        if len(self._asking) > MOST:
            self._asking.pop(0).close()

    def _answer(self, end: socket.socket) -> None:
        try:
            question = end.recv(256)
            if is_question(question):
                end.send(signed_answer(self.notice, self.secret, question))
                return
        except OSError:
            question = b""
        if hmac.compare_digest(question, self.release):
            self.take_down()  # and close this end: the restarted agent then knows the port is free
            return
        self._asking.remove(end)
        end.close()

    def take_down(self) -> None:
        for end in (self._socket, *self._asking):
            if end is not None:
                end.close()
        self._socket, self._asking, self.notice = None, [], b""
