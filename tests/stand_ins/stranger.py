"""A process of somebody else, whose name is cut within a character: it has the bytes b"mod\\xc3".

Programs in many languages name themselves so, after a file of their users for example: the kernel
keeps 15 bytes, whatever they mean. It closes its standard output once it has the name, and ends
with the process that has started it.
"""

import ctypes
import os
import signal

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
NOBODY = 65534

libc = ctypes.CDLL(None)
parent = os.getppid()
if not os.geteuid():
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
libc.prctl(PR_SET_NAME, b"mod\xc3", 0, 0, 0)
if os.getppid() == parent:
    os.close(1)
    signal.pause()
