"""A port to which only some addresses can connect.

Two sockets listen at it (SO_REUSEPORT), and a program in the kernel chooses between them by the
address of the other end. One of them is the caller's. The other one's queue is full, so the kernel
drops its packets: for other addresses, the port is as if behind a firewall. A connection that is
made before its address is admitted is not lost, since TCP tries again after a second.

The program is classic BPF, which needs no privilege. The usual socket filter (SO_ATTACH_FILTER)
needs only one socket, but newer kernels refuse it to ordinary users on TCP sockets.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import socket
import struct
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

SO_ATTACH_REUSEPORT_CBPF = 51  # asm-generic/socket.h; Python has no name for it
SIZES = (4096, 1024, 256)  # of programs to try; BPF_MAXINSNS is the first
WIDER = 4  # bits by which networks are widened where there are too many of them
LIMIT = 1.0  # seconds for a connection to ourselves, which a firewall might drop
BACKLOG = 4096  # connections that wait to be accepted
CLOSED, OPEN = 0, 1  # the two sockets, in the order in which they listen

# Instructions, from linux/bpf_common.h and linux/filter.h
LOAD, RECALL, STORE, AND, JUMP, IF_EQUAL, RETURN = 0x20, 0x60, 0x02, 0x54, 0x05, 0x15, 0x06
PROTOCOL = 0xFFFFF000  # where to load from: the protocol of the packet
HEADER = 0xFFF00000  # its IP header
IPV4, IPV6 = 0x0800, 0x86DD
SOURCE = {32: (12,), 128: (8, 12, 16, 20)}  # bits of an address: offsets of the source's words

Program: TypeAlias = list[tuple[int, int, int, int]]  # code, jump if true, jump if false, constant


def listen(port: int) -> socket.socket:
    """Return a socket that listens at all addresses, by IPv4 and where possible by IPv6."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=BACKLOG, dualstack_ipv6=dual)


class Network(NamedTuple):
    bits: int  # of an address
    number: int  # the address
    length: int  # of the prefix


class GuardedPort:
    """A port whose `socket`, which the caller closes, listens for admitted addresses."""

    def __init__(self, networks: Iterable[str]) -> None:
        """Raises OSError before Linux 4.6."""
        with contextlib.ExitStack() as undo:
            self.socket = undo.enter_context(self._bound(0))
            port = self.socket.getsockname()[1]
            self._closed = undo.enter_context(self._bound(port))
            self._closed.listen(0)  # this allows one connection, which is made next
            self._filler = undo.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT))
            self.admit(networks)
            self.socket.listen(BACKLOG)
            undo.pop_all()

    def _bound(self, port: int) -> socket.socket:
        dual = socket.has_dualstack_ipv6()
        it = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
        with contextlib.ExitStack() as undo:
            undo.enter_context(it)
            if dual:
                it.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            it.bind(("", port))
            undo.pop_all()
        return it

    def admit(self, networks: Iterable[str]) -> None:
        """Let only these networks, such as "192.0.2.7" and "2001:db8::/64", connect from now on.
        Raises OSError if the kernel refuses the program."""
        parsed = {read(network) for network in networks}
        for most in SIZES:
            code = program(parsed, most)
            text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *i) for i in code))
            fprog = struct.pack("HP", len(code), ctypes.addressof(text))
            try:
                self._closed.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, fprog)
                return
            except OSError as e:  # net.core.optmem_max is the limit
                if e.errno != errno.ENOMEM or most == SIZES[-1]:
                    raise

    def close(self) -> None:
        """Let everybody connect from now on, as long as `socket` is open."""
        self._filler.close()
        self._closed.close()


def read(network: str) -> Network:
    address, _, length = network.partition("/")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    bits = 8 * len(packed)
    return Network(bits, int.from_bytes(packed, "big"), int(length) if length else bits)


def program(networks: Iterable[Network], most: int) -> Program:
    """Return up to `most` instructions that choose OPEN for packets from these networks, and CLOSED
    for others."""
    ipv4, ipv6 = (block(networks, bits, most // 2 - 4) for bits in SOURCE)
    return [
        (LOAD, 0, 0, PROTOCOL),
        (IF_EQUAL, 1, 0, IPV4),
        (JUMP, 0, 0, len(ipv4)),
        *ipv4,
        (IF_EQUAL, 1, 0, IPV6),
        (RETURN, 0, 0, CLOSED),
        *ipv6,
    ]


def block(networks: Iterable[Network], bits: int, most: int) -> Program:
    """Return the part for the networks of one kind, widened where there are too many of them."""
    code: Program = []
    for place, offset in enumerate(SOURCE[bits]):
        code += [(LOAD, 0, 0, HEADER + offset), (STORE, 0, 0, place)]
    same = [(number, length) for kind, number, length in networks if kind == bits]
    for longest in range(bits, -1, -WIDER):
        cut = ((number, min(length, longest)) for number, length in same)
        ours = {(number >> bits - length, length) for number, length in cut}
        each = 3 * -(-longest // 32) + 1
        if len(code) + each * len(ours) < most:
            break
    for number, length in sorted(ours):
        code += match(number << bits - length, length, bits)
    return [*code, (RETURN, 0, 0, CLOSED)]


def match(number: int, length: int, bits: int) -> Program:
    """Return instructions that choose OPEN for a network, and otherwise continue."""
    code = [(RETURN, 0, 0, OPEN)]
    mask = ((1 << length) - 1) << bits - length
    for place in reversed(range(-(-length // 32))):
        word, part = (it >> bits - 32 * (place + 1) & 0xFFFFFFFF for it in (number, mask))
        code = [(RECALL, 0, 0, place), (AND, 0, 0, part), (IF_EQUAL, 0, len(code), word), *code]
    return code
