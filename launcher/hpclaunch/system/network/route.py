"""Addresses as other nodes see them: the addresses of a name, and the route to a peer."""

from __future__ import annotations

import errno
import ipaddress
import socket
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from ..shared import scontrol

LOOPBACK = "127.0.0.1"
_IPV6 = Path("/proc/self/net/if_inet6")  # address, index, prefix length, scope, flags, name
_TEMPORARY = 0x01  # IFA_F_TEMPORARY in linux/if_addr.h
ATTEMPTS = 5
PAUSE = 1.0  # seconds between two attempts


def resolve(host: str, *, loopback: bool = False) -> list[str]:
    """Return the numeric addresses of a host that others can use, in the resolver's order.

    Many systems map a host's own name to 127.0.1.1, which is no address for others. Such addresses
    are left out, or with `loopback` are last. Raises OSError if the name is unknown.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError as e:
        raise OSError(f"no address for {host}: {e.strerror}") from e
    except ValueError as e:  # it cannot be encoded for the resolver
        raise OSError(f"no address for {host}: it is no host name") from e
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    usable = [a for a in addresses if not _is_loopback(a)]
    return usable + [a for a in addresses if loopback and _is_loopback(a)]


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def resolve_node(host: str) -> list[str]:
    """Return the addresses of a node: those of its name, or if that has none here, those of Slurm's
    NodeAddr. Raises OSError, which says why there is none.
    """
    try:
        if addresses := resolve(host):
            return addresses
        why = OSError(
            f"{host} resolves to loopback here, which is no address for others: fix /etc/hosts on "
            "this host, or the name service"
        )
    except OSError as e:
        why = e
    with suppress(OSError):
        if addresses := resolve(scontrol.node_address(host)):
            return addresses
    raise why


def resolve_patiently(host: str, attempts: int = ATTEMPTS, *, loopback: bool = False) -> list[str]:
    """Return the addresses of a Slurm node or, with `loopback`, of any machine, including this one.
    Raises OSError, which says why there is none.

    The look-up is repeated, since a name server that a thousand tasks ask at once may not answer.
    """
    look = partial(resolve, host, loopback=True) if loopback else partial(resolve_node, host)
    for _ in range(attempts - 1):
        with suppress(OSError):
            return look()
        time.sleep(PAUSE)
    return look()


def source_address(peer: str) -> str:
    """Return this host's address on the route to a numeric address. Raises OSError."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.connect((peer, 9))
        return str(s.getsockname()[0])


def begin_connection(address: str, port: int) -> tuple[socket.socket | None, int]:
    """Begin a connection, and return its socket and the error so far. The socket is None if it
    cannot be tried, as for an address that is not numeric.
    """
    try:
        ((family, kind, _, _, sockaddr),) = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
        s = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    except OSError as e:
        return None, e.errno or errno.EINVAL
    return s, s.connect_ex(sockaddr)


def reserve_port() -> socket.socket:
    """Return a socket that is bound to a free port, and does not listen."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("", 0))
    return s


def networks_of_node(address: str) -> tuple[str, ...]:
    """Return where this node's connections may originate, as "192.0.2.7" or "2001:db8::/64".

    These are all addresses of its interfaces, since the route decides which one is used, and the
    `address` that the user has chosen ("" for none). A temporary IPv6 address is replaced by its
    network: the kernel changes such addresses, usually once a day.
    """
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    entries = [e for group in psutil.net_if_addrs().values() for e in group if e.family in families]
    ours = (ipaddress.ip_address(e.address.partition("%")[0]) for e in entries)
    found = {str(a) for a in ours if not (a.is_loopback or a.is_link_local)}
    named = {address.partition("%")[0]} - {""}
    return tuple(sorted(found | named | _temporary()))


def _temporary() -> set[str]:
    found = set()
    with suppress(OSError):  # no IPv6 here
        for line in _IPV6.read_text().splitlines():
            digits, _, length, _, flags, *_ = line.split()
            if int(flags, 16) & _TEMPORARY:
                network = (int(digits, 16), int(length, 16))
                found.add(str(ipaddress.IPv6Network(network, strict=False)))
    return found


def interface_of(address: str) -> str:
    """Return the network interface that has a local address; "" if none has it."""
    if address == LOOPBACK:
        return "lo"
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return name
    return ""
