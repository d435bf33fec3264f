"""The TCP connections of processes, and the amount of data that has gone over them."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Collection, Iterable
from typing import NamedTuple

from . import sock_diag


class Connection(NamedTuple):
    bytes: int  # that have gone over it
    unacknowledged: int
    sent: int  # milliseconds since data was sent
    received: int  # milliseconds since data was received
    peer: str  # the address of its other end; "" if that is on this node
    delay: float  # seconds for a packet and its acknowledgement, smoothed


def sockets_of(pid: int) -> set[int]:
    """Return the inodes of a process's sockets. Raises OSError if it has ended."""
    files = (_file_of(pid, fd) for fd in os.listdir(f"/proc/{pid}/fd"))
    return {int(file[8:-1]) for file in files if file.startswith(b"socket:[")}


def connections_of(pids: Iterable[int]) -> dict[int, Connection]:
    """Return {inode: Connection} of these processes; none where the kernel does not list them."""
    inodes: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            inodes |= sockets_of(pid)
    return (inodes and tcp_connections(inodes)) or {}


def _file_of(pid: int, fd: str) -> bytes:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}".encode())
    except OSError:
        return b""  # it was closed just now


# The TCP connections of this network namespace, from the kernel's sock_diag.
INET_DIAG_INFO = 2  # an attribute, a struct tcp_info
CONNECTED = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 8  # also those that are being opened or closed
REQUEST = struct.Struct("=BBBxI48x")
MESSAGE = struct.Struct("=BBBB4x16s16s12xIIIII")
AGES, DELAY, AMOUNTS = map(struct.Struct, ("=44xIIII", "=68xI", "=120xQQ"))


def tcp_connections(inodes: Collection[int] | None = None) -> dict[int, Connection] | None:
    """Return {inode: Connection}, by default of all inodes; None where the kernel does not list
    them."""
    found = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        request = REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), CONNECTED)
        try:
            messages = [*sock_diag.dump(request)]
        except OSError:
            return None
        for message in messages:
            *_, own, other, _, _, unacknowledged, _, inode = MESSAGE.unpack_from(message)
            if inodes is not None and inode not in inodes:
                continue
            info = sock_diag.attributes(message[MESSAGE.size :]).get(INET_DIAG_INFO, b"")
            info = info.ljust(AMOUNTS.size, b"\0")  # as long as the newest kernel would send it
            sent, _, received, _ = AGES.unpack_from(info)
            amount = sum(AMOUNTS.unpack_from(info))
            peer = "" if own == other else _address(family, other)
            delay = DELAY.unpack_from(info)[0] / 1e6
            found[inode] = Connection(amount, unacknowledged, sent, received, peer, delay)
    return found


def _address(family: int, raw: bytes) -> str:
    """Return an address as text; an IPv4 address without the prefix that it has in IPv6."""
    text = socket.inet_ntop(family, raw[:4] if family == socket.AF_INET else raw)
    return text.removeprefix("::ffff:")
