"""stranger.py [NAME]: a process of another user, if started by root, with this name, in hex.

The kernel keeps 15 bytes of the name; the default ends within a character. The process closes its
standard output after it has the name, and ends with its parent.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME = 1, 4, 15
NOBODY = 65534

libc = ctypes.CDLL(None)
parent = os.getppid()
name = bytes.fromhex(sys.argv[1]) if sys.argv[1:] else b"mod\xc3"
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # its files in /proc belong to its user again
libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
libc.prctl(PR_SET_NAME, name, 0, 0, 0)
os.close(1)
while os.getppid() == parent:
    signal.pause()
