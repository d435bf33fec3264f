"""Several machines without Slurm: which one is the head, and its address for the others."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from pathlib import Path

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import HEAD, Allocation, Place, a_machine
from hpclaunch.core.protocol.values import replace

_claims: list[socket.socket] = []  # held for as long as this process lives


def fixed(
    rank: int, machines: int, host: str, port: int, *, run_id: str, name: str, here: str
) -> Allocation:
    """Return the allocation of machines that the user has numbered; number 0 is at `host`. `here`
    is the name of this machine.
    """
    if rank >= machines:
        raise UsageError(f"--node-rank {rank}, but --nnodes {machines}: ranks begin at 0")
    return _allocation(rank, machines, host, port, run_id=run_id, name=name, here=here)


def first_come(
    machines: int,
    host: str,
    port: int,
    *,
    run_id: str,
    name: str,
    here: str,
    head: bool | None,
    shared: bytes,
) -> Allocation:
    """Return the allocation of machines that are numbered in the order in which they report; the
    one that `host` names is the head.

    `head` (is_host in --rdzv-conf) overrules that. Of several agents on that machine the first one
    is the head. Without the secret that they have `shared`, nobody can predict its claim.
    """
    import hmac  # loads OpenSSL, which only an agent that meets others needs

    is_there = is_local(host) if head is None else head
    digest = hmac.digest(shared, os.fsencode(f"hpclaunch head {port} {run_id}"), "sha256")
    claimed = claim(digest.hex()) if is_there else None
    if claimed is not None:
        _claims.append(claimed)
    index = 1 if claimed is None else HEAD
    where = _allocation(index, machines, host, port, run_id=run_id, name=name, here=here)
    return replace(where, has_place=claimed is not None)


def _allocation(
    index: int, machines: int, host: str, port: int, *, run_id: str, name: str, here: str
) -> Allocation:
    # The others' names are known once they report; they are not needed to find the head.
    names = [host, *map(a_machine, range(1, machines))]
    names[index] = here
    places = tuple(Place(i, i, n) for i, n in enumerate(names))
    identity = f"machines {machines} {run_id} {port}"
    return Allocation(name, identity, places, index, (host, port), is_step=False)


def own_address(named: str, *, loopback: bool = False) -> str:
    """Return the address of this machine for `named` (an address, a name or an interface); "" if
    there is none. Loopback addresses count only with `loopback`.
    """
    found = _local(named) or _addresses_on(named)
    usable = [a for a in found if not ipaddress.ip_address(a.partition("%")[0]).is_loopback]
    return next(iter(usable + found * loopback), "")


def is_local(host: str) -> bool:
    """Return whether a name or an address belongs to this machine."""
    return bool(_local(host))


def _local(host: str) -> list[str]:
    """Return those addresses of a host that belong to this machine."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return []
    addresses = []
    for family, kind, _, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind) as s:
            s.bind(address)
            addresses.append(str(address[0]))
    return addresses


def _addresses_on(interface: str) -> list[str]:
    """Return the addresses of a network interface, without link-local ones."""
    import psutil  # slow, and used only here

    families = (socket.AF_INET, socket.AF_INET6)
    entries = psutil.net_if_addrs().get(interface, [])
    return [e.address for e in entries if e.family in families and "%" not in e.address]


def claim(what: str) -> socket.socket | None:
    """Return a socket that holds a claim while it is open; None if another process on this machine
    holds it.
    """
    import hashlib  # loads OpenSSL, which only an agent that meets others needs

    # The name of a socket has at most 107 bytes, and `what` may be longer.
    digest = hashlib.sha256(os.fsencode(what)).hexdigest()
    s = socket.socket(socket.AF_UNIX)
    try:
        s.bind(f"\0hpclaunch {os.geteuid()} {digest}".encode())
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            s.close()
            return None
    return s


def scope(held: socket.socket) -> str:
    """Return what identifies a claim: the boot, the network namespace and the user. Only one living
    process can hold it. "" if it is not known.
    """
    if not held.getsockname():
        return ""
    try:
        space = os.stat("/proc/self/ns/net").st_ino
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return ""
    return f"{boot} {space} {os.geteuid()}"
