"""crowd.py ADDRESS PORT NUMBER: hold so many connections to a port as long as stdin is open.

A connection that the other side closes is replaced by a new one. Half of the connections send
nothing, the others send the greeting of a ZeroMQ peer, one byte at a time. The program prints
"held" when it has NUMBER connections for the first time, and at the end how many it has made.
"""
# ruff: noqa: T201 -- its output is its result

import contextlib
import resource
import select
import socket
import sys
import time

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
PAUSE = 0.2  # seconds between two bytes, and before another attempt to connect


def main() -> None:
    target, number = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3])
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    poll = select.poll()
    poll.register(sys.stdin, select.POLLIN)
    held: dict[int, tuple[socket.socket, int]] = {}  # with the number of bytes sent
    made, is_announced, next_byte = 0, False, time.monotonic()
    while True:
        try:
            while len(held) < number:
                s = socket.create_connection(target, timeout=10)
                s.setblocking(False)
                held[s.fileno()] = (s, 0)
                poll.register(s, select.POLLIN)
                made += 1
            if not is_announced:
                print("held", flush=True)
            is_announced = True
        except OSError:
            time.sleep(PAUSE)
        for fd, _ in poll.poll(PAUSE * 1000):
            if fd == sys.stdin.fileno():
                print(made, flush=True)
                return
            s, _ = held[fd]
            if is_closed(s):
                poll.unregister(fd)
                del held[fd]
                s.close()
        if time.monotonic() >= next_byte:
            next_byte = time.monotonic() + PAUSE
            for fd, (s, sent) in list(held.items())[::2]:
                with contextlib.suppress(OSError):  # it is closed, as poll() will report
                    held[fd] = (s, sent + s.send(GREETING[sent : sent + 1]))


def is_closed(s: socket.socket) -> bool:
    """Return whether the other side has closed the connection; drop its data."""
    try:
        return not s.recv(4096)
    except BlockingIOError:
        return False
    except OSError:
        return True


main()
