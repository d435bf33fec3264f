"""A careless fork server: `forking.py SCRIPT ...` shows what the probe must notice.

It has imported what the script did not, has a thread, an open file, a handler and a seed of its
own, and runs the script with runpy in a child, below its own frames.
"""

import csv  # noqa: F401
import gc
import os
import random
import runpy
import signal
import sys
import threading
import warnings

held = open("/dev/null")  # noqa: SIM115
random.seed(1)
signal.signal(signal.SIGTERM, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
warnings.simplefilter("ignore")
threading.Thread(target=signal.pause, daemon=True).start()
gc.freeze()
os.environ["FORKED"] = "1"

pid = os.fork()
if not pid:
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.stdout.flush()
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
os._exit(code)  # the thread never ends
