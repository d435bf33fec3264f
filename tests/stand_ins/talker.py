"""talker.py PORT WORDS: a program that says WORDS, in hexadecimal, to whoever connects to PORT; no
WORDS: it is silent.

It prints the port once it listens. Where somebody else does, it waits for that one to be gone.
"""
# ruff: noqa: T201 -- what it says is its result

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
