"""Connections to numeric addresses that are made without waiting."""

from __future__ import annotations

import errno
import socket


def begin_connection(address: str, port: int) -> tuple[socket.socket | None, int]:
    """A connection that is being made, and the error so far; None if it cannot be tried, as for an
    address that is not numeric.
    """
    try:
        ((family, kind, _, _, sockaddr),) = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
        s = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    except OSError as e:
        return None, e.errno or errno.EINVAL
    return s, s.connect_ex(sockaddr)
