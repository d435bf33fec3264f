"""Addresses as other nodes see them: names to addresses, routes to interfaces."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Iterable

LOOPBACK = "127.0.0.1"
ATTEMPTS = 5
PAUSE = 1.0  # seconds between two attempts


def resolve(host: str) -> list[str]:
    """The numeric addresses of a host that are not loopback, in the resolver's order.

    Many systems map a host's own name to 127.0.1.1, which is no address for others. Raises OSError
    when the name is unknown.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    return [a for a in addresses if not ipaddress.ip_address(a.partition("%")[0]).is_loopback]


def resolve_any(hosts: Iterable[str], attempts: int = ATTEMPTS) -> str:
    """An address of the first host that has one; OSError says for which hosts there was none.

    A name server that a thousand tasks ask at once may not answer the first time.
    """
    names = list(hosts)
    for attempt in range(attempts):
        for name in names:
            try:
                if addresses := resolve(name):
                    return addresses[0]
            except OSError:
                continue
        if attempt + 1 < attempts:
            time.sleep(PAUSE)
    raise OSError(f"no address for {', '.join(names[:4])} that other hosts could reach")


def source_address(peer: str) -> str:
    """Our address on the route to a numeric address. Sends nothing; OSError without a route."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.connect((peer, 9))
        return str(s.getsockname()[0])


def interface_of(address: str) -> str:
    """The network interface that has a local address, "" when none has."""
    if address == LOOPBACK:
        return "lo"
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return name
    return ""
