"""Mount a directory on a file system that stalls while FILE exists.

    python stalling.py DIRECTORY MOUNTPOINT FILE

All calls wait, except those that FILE names. Needs root and /dev/fuse. It ends when unmounted.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "stand_ins"))

from passthrough import Passthrough

SOURCE, MOUNTPOINT, STALLS = sys.argv[1:]


class Stalling(Passthrough):
    def delay(self, call, args):
        while os.path.exists(STALLS) and call not in spared():
            time.sleep(0.05)


def spared():
    try:
        with open(STALLS) as f:
            return f.read().split()
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    Stalling(SOURCE).mount(MOUNTPOINT)
