"""Nothing is timed: a noisy machine is no failure."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("hpclaunch", deadline=None)
settings.load_profile("hpclaunch")

# Names that a process may give itself, of up to 15 bytes, as it likes.
NAMES = (
    b"mod\xc3",  # cut in the middle of a character
    b") R 1 (x",  # as the end of the name in /proc/PID/stat, and what follows it
    b"a\nSigCgt:\tfffff",  # as a line of /proc/PID/status
    b"\x1b[31mred\x07\r\n",  # for a terminal
)
STRANGER = """
import ctypes, os, sys
libc, name = ctypes.CDLL(None), bytes.fromhex(sys.argv[1])
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: what is of it in /proc is of its user again
libc.prctl(15, name, 0, 0, 0)  # PR_SET_NAME
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def strangers() -> Iterator[dict[bytes, int]]:
    """The pids of running processes, by their names; of another user's where we are root."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", STRANGER]
    running = {
        name: subprocess.Popen([*command, name.hex()], stdin=pipe, stdout=pipe) for name in NAMES
    }
    for process in running.values():
        assert process.stdout is not None
        process.stdout.readline()
    yield {name: process.pid for name, process in running.items()}
    for process in running.values():
        process.communicate()
