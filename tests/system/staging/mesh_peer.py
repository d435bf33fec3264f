"""The stager of another node, as a process: it only serves, until its standard input is closed."""

import sys
from pathlib import Path

from hpclaunch.system.staging import mesh, remote_node
from hpclaunch.system.staging.node import StageNode

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))
    from clocks import FastClock

    stage, storage, key, silence, late = sys.argv[1:]
    remote_node.SILENCE = float(silence)
    remote_node.time = FastClock(late)
    sys.stdout.write(f"{mesh.Mesh(bytes.fromhex(key), StageNode(stage, storage)).port}\n")
    sys.stdout.flush()
    sys.stdin.read()
