"""The TCP connections of processes: which are theirs, and how much has gone over them."""

import collections
import contextlib
import os
import socket
import struct
import sys

Connection = collections.namedtuple(
    "Connection",
    [
        "bytes",
        "unacknowledged",
        "sent",
        "received",
        "peer",  # the address of its other end; "" if that is on this node
        "delay",  # seconds for a packet and its acknowledgement, smoothed
    ],
)


def sockets_of(pid):
    """The inodes of its sockets; OSError if it has ended."""
    files = (_file_of(pid, fd) for fd in os.listdir(f"/proc/{pid}/fd"))
    return {int(file[8:-1]) for file in files if file.startswith(b"socket:[")}


def connections_of(pids):
    """{inode: Connection} of these processes; none where the kernel does not tell."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            inodes |= sockets_of(pid)
    known = tcp_connections() or {}
    return {inode: known[inode] for inode in inodes & known.keys()}


def _file_of(pid, fd):
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}".encode())
    except OSError:
        return b""  # it was closed just now


# The TCP connections of this network namespace, from the kernel's sock_diag (see sock_diag(7)).
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
INET_DIAG_INFO = 2  # an attribute, a struct tcp_info
CONNECTED = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 8  # also those that are being opened or closed
HEADER, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
REQUEST = struct.Struct("=BBBxI48x")
MESSAGE = struct.Struct("=BBBB4x16s16s12xIIIII")
AGES, DELAY, AMOUNTS = map(struct.Struct, ("=44xIIII", "=68xI", "=120xQQ"))


def tcp_connections():
    """{inode: Connection}; None where the kernel does not tell."""
    try:
        return _dump()
    except OSError:
        return None


def _dump():
    found = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        for family in (socket.AF_INET, socket.AF_INET6):
            request = REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), CONNECTED)
            flags = NLM_F_REQUEST | NLM_F_DUMP
            size = HEADER.size + len(request)
            kernel.send(HEADER.pack(size, SOCK_DIAG_BY_FAMILY, flags, 1, 0) + request)
            for message in _answers(kernel):
                *_, own, other, _, _, unacknowledged, _, inode = MESSAGE.unpack_from(message)
                info = _attribute(message, INET_DIAG_INFO)
                sent, _, received, _ = AGES.unpack_from(info)
                amount = sum(AMOUNTS.unpack_from(info))
                peer = "" if own == other else _address(family, other)
                delay = DELAY.unpack_from(info)[0] / 1e6
                found[inode] = Connection(amount, unacknowledged, sent, received, peer, delay)
    return found


def _address(family, raw):
    """Without what IPv6 puts before an IPv4 address."""
    text = socket.inet_ntop(family, raw[:4] if family == socket.AF_INET else raw)
    return text.removeprefix("::ffff:")


def _answers(kernel):
    while True:
        data = kernel.recv(1 << 16)
        while data:
            length, kind, *_ = HEADER.unpack_from(data)
            message, data = data[HEADER.size : length], data[_aligned(length) :]
            if kind == NLMSG_DONE:
                return
            if kind == NLMSG_ERROR:
                raise OSError(-int.from_bytes(message[:4], sys.byteorder, signed=True), "sock_diag")
            yield message


def _attribute(message, wanted):
    """As long as the newest kernel would send it; what is not there is 0."""
    rest = message[MESSAGE.size :]
    while len(rest) >= ATTRIBUTE.size:
        length, kind = ATTRIBUTE.unpack_from(rest)
        if kind == wanted:
            return rest[ATTRIBUTE.size : length].ljust(AMOUNTS.size, b"\0")
        rest = rest[_aligned(length) :]
    return bytes(AMOUNTS.size)


def _aligned(length):
    return (length + 3) & ~3
