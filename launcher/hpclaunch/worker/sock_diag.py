"""The sockets of this network namespace, as the kernel lists them: sock_diag(7); and for TCP, the
amount of data that has gone over connections."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from .processes import file_of

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
LIMIT = 1.0  # seconds for an answer of the kernel
HEADER, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
# The TCP connections. INET_DIAG_INFO is an attribute, a struct tcp_info; CONNECTED has also
# connections that are being opened or closed.
INET_DIAG_INFO = 2
CONNECTED = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 8
TCP_REQUEST = struct.Struct("=BBBxI48x")
TCP_MESSAGE = struct.Struct("=BBBB4x16s16s12xIIIII")
AGES, DELAY, AMOUNTS = map(struct.Struct, ("=44xIIII", "=68xI", "=120xQQ"))


def dump(request: bytes) -> Iterator[bytes]:
    """Yield a message for each socket that the request (a struct of sock_diag) asks for. Raises
    OSError where the kernel does not answer."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(LIMIT)
        flags, size = NLM_F_REQUEST | NLM_F_DUMP, HEADER.size + len(request)
        kernel.send(HEADER.pack(size, SOCK_DIAG_BY_FAMILY, flags, 1, 0) + request)
        while True:
            data, at = kernel.recv(1 << 16), 0
            while at < len(data):
                length, kind, *_ = HEADER.unpack_from(data, at)
                message = data[at + HEADER.size : at + length]
                at += _aligned(length)
                if kind == NLMSG_DONE:
                    return
                if kind == NLMSG_ERROR:
                    number = -int.from_bytes(message[:4], sys.byteorder, signed=True)
                    raise OSError(number, "sock_diag")
                yield message


def attributes(data: bytes) -> dict[int, bytes]:
    """Return the attributes that follow the struct in a message: {number: bytes}."""
    found: dict[int, bytes] = {}
    while len(data) >= ATTRIBUTE.size:
        length, number = ATTRIBUTE.unpack_from(data)
        found[number] = data[ATTRIBUTE.size : length]
        data = data[_aligned(length) :]
    return found


class Connection(NamedTuple):
    bytes: int  # that have gone over it
    unacknowledged: int
    sent: int  # milliseconds since data was sent
    received: int  # milliseconds since data was received
    peer: str  # the address of its other end; "" if that is on this node
    delay: float  # seconds for a packet and its acknowledgement, smoothed


def sockets_of(pid: int) -> set[int]:
    """Return the inodes of a process's sockets. Raises OSError if it has ended."""
    files = (file_of(pid, fd) for fd in os.listdir(f"/proc/{pid}/fd"))
    return {int(file[8:-1]) for file in files if file.startswith(b"socket:[")}


def connections_of(pids: Iterable[int]) -> dict[int, Connection]:
    """Return {inode: Connection} of these processes; none where the kernel does not list them."""
    inodes: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            inodes |= sockets_of(pid)
    return (inodes and tcp_connections(inodes)) or {}


def tcp_connections(inodes: Collection[int] | None = None) -> dict[int, Connection] | None:
    """Return {inode: Connection}, by default of all inodes; None where the kernel does not list
    them."""
    found = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        request = TCP_REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), CONNECTED)
        try:
            messages = [*dump(request)]
        except OSError:
            return None
        for message in messages:
            *_, own, other, _, _, unacknowledged, _, inode = TCP_MESSAGE.unpack_from(message)
            if inodes is not None and inode not in inodes:
                continue
            info = attributes(message[TCP_MESSAGE.size :]).get(INET_DIAG_INFO, b"")
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


def _aligned(length: int) -> int:
    return (length + 3) & ~3
