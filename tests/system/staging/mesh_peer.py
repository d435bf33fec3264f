"""The stager of another node, as a process: it only serves, until its standard input is closed."""

import sys
import time
from pathlib import Path

from hpclaunch.system.staging import mesh, remote_node
from hpclaunch.system.staging.node import StageNode

HURRY = 100.0


class HurriedClock:
    """The module `time`, whose monotonic clock runs faster since the time in a file, if there is
    one. So a test decides when somebody has been silent for long, and no busy machine does.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def monotonic(self) -> float:
        try:
            since = float(self._file.read_text() or "inf")
        except FileNotFoundError:
            return time.monotonic()
        return max(now := time.monotonic(), since + HURRY * (now - since))


if __name__ == "__main__":
    stage, storage, key, silence, hurry = sys.argv[1:]
    remote_node.SILENCE = float(silence)
    remote_node.time = HurriedClock(Path(hurry))
    sys.stdout.write(f"{mesh.Mesh(bytes.fromhex(key), StageNode(stage, storage)).port}\n")
    sys.stdout.flush()
    sys.stdin.read()
