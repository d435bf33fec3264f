"""The stager of another node, as a process: it only serves, until its standard input is closed."""

import sys

from hpclaunch.system.staging import mesh, remote_node
from hpclaunch.system.staging.node import StageNode

if __name__ == "__main__":
    stage, storage, key, silence = sys.argv[1:]
    remote_node.SILENCE = float(silence)
    sys.stdout.write(f"{mesh.Mesh(bytes.fromhex(key), StageNode(stage, storage)).port}\n")
    sys.stdout.flush()
    sys.stdin.read()
