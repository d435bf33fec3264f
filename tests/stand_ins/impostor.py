"""impostor.py KIND ANSWER NAMES...: bind sockets to these names, given in hexadecimal.

As root, it becomes another user's process. It prints "ready" after all sockets are bound. It
answers each question with a descriptor of a pipe, a directory, or a file in memory with ANSWER
bytes, or not at all if ANSWER is "silence". It ends at the end of its standard input.
"""
# ruff: noqa: T201 -- its output is its result

import contextlib
import os
import resource
import selectors
import socket
import sys

NOBODY = 65534

kind, answer, *names = sys.argv[1:]
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
if answer == "pipe":
    fd = os.pipe()[0]
elif answer == "directory":
    fd = os.open("/", os.O_RDONLY)
elif answer != "silence":
    fd = os.memfd_create("impostor")
    os.truncate(fd, int(answer))
held = []
for name in names:
    held.append(socket.socket(socket.AF_UNIX, int(kind)))
    held[-1].bind(bytes.fromhex(name))
print("ready", flush=True)
if answer == "silence":
    sys.stdin.read()
    sys.exit()
with selectors.DefaultSelector() as selector:
    for end in (sys.stdin, *held):
        selector.register(end, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                sys.exit()
            _, fds, _, _ = socket.recv_fds(key.fileobj, 64, 1)
            with contextlib.suppress(OSError):  # the client does not accept it
                for each in fds:
                    with socket.socket(fileno=each) as end:
                        socket.send_fds(end, [b"."], [fd])
