"""talker.py PORT WORDS: send WORDS, given in hexadecimal and possibly empty, on each connection.

It prints the port after it listens. If the port is in use, it waits until it is free.
"""
# ruff: noqa: T201 -- its output is its result

import socket
import sys
import time

port, words = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
while True:
    try:
        listener = socket.create_server(("127.0.0.1", port))
        break
    except OSError:
        time.sleep(0.001)
print(listener.getsockname()[1], flush=True)
held = []
while True:
    held.append(listener.accept()[0])
    held[-1].send(words)
