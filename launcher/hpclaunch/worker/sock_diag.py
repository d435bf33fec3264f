"""The sockets of this network namespace, as the kernel lists them: sock_diag(7)."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
LIMIT = 1.0  # seconds for an answer of the kernel
HEADER, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")


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


def _aligned(length: int) -> int:
    return (length + 3) & ~3
