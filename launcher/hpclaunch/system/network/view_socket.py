"""The socket at which an agent answers questions of its user, on its machine, about its job.

It is an abstract Unix socket (`unix(7)`), whose name begins with the user's id so that
`view_client.py` finds it. The kernel reports who sent a question; those of other users are dropped.
A question is one datagram that carries one end of a socket pair. The answer is sent there, as a
file in memory. So the agent never waits, a client keeps none of its resources open, and a late
answer reaches nobody else.

    question                      content of the answer's file
    look                          a LaunchSnapshot
    ledger                        a Launch; "" if the agent does not lead
    stop, restart, notice         the reason for a refusal; "" if the request is granted

The socket's buffer throttles clients: it holds few datagrams, and the agent reads some at a time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct

LOOK, LEDGER = b"look", b"ledger"
CONNECTION = socket.SOCK_SEQPACKET
MOST = 16  # questions at a time
_QUESTION = 64  # bytes
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_ROOM = 16  # descriptors; credentials, which come first, take the room of some


def name_of(user: int) -> bytes:
    """Return the prefix of the names of this user's sockets."""
    return f"hpclaunch/{user}/".encode()


def receive_own(end: socket.socket, most: int) -> tuple[bytes, list[int]]:
    """Return a message of at most `most` bytes, with its descriptors; (b"", []) if another user
    has sent it. Raises OSError if there is none.

    The kernel closes another user's descriptors, since there is no room for them here.
    """
    space = socket.CMSG_SPACE(_CREDENTIALS.size)
    _, ancillary, _, _ = end.recvmsg(1, space, socket.MSG_PEEK)
    if _uid_of(ancillary) != os.geteuid():
        end.recv(most)
        return b"", []
    text, fds, _, _ = socket.recv_fds(end, most, _ROOM)
    return text, fds


def _uid_of(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """Return the user whose process has sent a message, according to the kernel."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return int(_CREDENTIALS.unpack(data)[1])
    return None


class ViewSocket:
    """The agent's socket. Raises OSError where the system has no such sockets."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self.name = b"\0" + name_of(os.geteuid()) + os.urandom(8).hex().encode()
            self._socket.bind(self.name)
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[tuple[bytes, socket.socket]]:
        """Return some of the questions, each with its connection, which `answer` closes."""
        questions = []
        for _ in range(MOST):
            try:
                word, fds = receive_own(self._socket, _QUESTION)
            except OSError:
                break
            if len(fds) == 1 and stat.S_ISSOCK(os.fstat(fds[0]).st_mode):
                questions.append((word, socket.socket(fileno=fds[0])))
            else:
                for fd in fds:
                    os.close(fd)
        return questions

    def answer(self, end: socket.socket, file: int) -> None:
        """Send the file with this descriptor; -1 sends nothing. A client that does not read gets
        no answer.
        """
        with end, contextlib.suppress(OSError):
            socket.send_fds(end, [b"."], [file], socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._socket.close()


def file_of(data: bytes) -> int:
    """Return the descriptor of a file in memory."""
    fd = os.memfd_create("hpclaunch view", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
    except OSError:
        os.close(fd)
        raise
    return fd


def content_of(fd: int) -> bytes:
    """Return the content of a file in memory, and close it."""
    try:
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)
