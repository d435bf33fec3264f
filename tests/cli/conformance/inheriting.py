"""Become a program in a state that is not the usual one: `inheriting.py SIGNUMS PROGRAM ...`.

SIGNUMS ("12,23", may be empty) are blocked.
What a user or a site sets before the launcher is the script's business, under any launcher.
"""

import os
import resource
import signal
import sys

os.umask(0o037)
os.nice(3)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 250))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_STACK, (4 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for signum in (signal.SIGHUP, signal.SIGUSR1, signal.SIGTTOU, signal.SIGWINCH, signal.SIGRTMIN + 5):
    signal.signal(signum, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, map(int, filter(None, sys.argv[1].split(","))))
with open("/proc/self/oom_score_adj", "w") as f:
    f.write("100")
os.execvp(sys.argv[2], sys.argv[2:])
