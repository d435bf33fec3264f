"""Where an agent is asked what its job does, by its own user, on its own machine.

It is a socket without a file (`unix(7)`, abstract), whose name begins with the user's number, so
that `view_client.py` finds it. The kernel tells who has sent a question, and one of anybody else is
dropped. Each question is one datagram, and so is its answer, which comes with a file in memory: so
nothing here waits, and nobody who asks keeps anything of the agent's open.

    a question                    its answer
    look                          the file has a LaunchSnapshot
    ledger                        the file has a LedgerFile; "" if the agent does not lead
    stop, restart, notice         the file has why not: "" if it is done

Who asks too much waits: the kernel keeps few datagrams, and the agent reads some at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct

LOOK, LEDGER = b"look", b"ledger"
MOST = 16  # questions at a time
_QUESTION = 64  # bytes
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
LARGEST = 1 << 26  # bytes of an answer; that of ten thousand workers has about a million


def name_of(user: int) -> bytes:
    """How the names of this user's agents' sockets begin."""
    return f"hpclaunch/{user}/".encode()


def uid_of(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """Of the process that has sent a datagram, as the kernel says."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return int(_CREDENTIALS.unpack(data)[1])
    return None


class ViewSocket:
    """Raises OSError where there are no such sockets."""

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

    def receive(self) -> list[tuple[bytes, bytes]]:
        """Some of the questions that are there, with the addresses of those who ask."""
        questions = []
        for _ in range(MOST):
            try:
                # No room for descriptors: the kernel closes those that somebody sends.
                space = socket.CMSG_SPACE(_CREDENTIALS.size)
                word, ancillary, _, address = self._socket.recvmsg(_QUESTION, space)
            except OSError:
                break
            if address and uid_of(ancillary) == os.geteuid():
                questions.append((word, address))
        return questions

    def answer(self, address: bytes, file: int) -> None:
        """`file` is a descriptor. Who does not take the answer gets none."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", file))]
        with contextlib.suppress(OSError):
            self._socket.sendmsg([b"."], rights, socket.MSG_DONTWAIT, address)

    def close(self) -> None:
        self._socket.close()


def file_of(data: bytes) -> int:
    """The descriptor of a file in memory that nobody can change."""
    fd = os.memfd_create("hpclaunch view", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


def content_of(fd: int) -> bytes | None:
    """Return the content of a file like those of `file_of`; None for any other file, which is not
    read. Closes the descriptor.
    """
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS:
            size = os.fstat(fd).st_size
            return os.pread(fd, size, 0) if size <= LARGEST else None
    except OSError:
        pass  # it is no file in memory
    finally:
        os.close(fd)
    return None
