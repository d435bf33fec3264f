"""Measure copies from one node's memory to another's, in an earlier version of hpclaunch and in
this one.

    git worktree add /tmp/before COMMIT
    python bench/node_copies.py [--before /tmp/before] [--size 1000] [--runs 5]

Two stagers run as processes of this machine: one fetches a file of --size MB from the memory of the
other, over the loopback interface. `time` is how long it takes, `source` and `fetcher` are the CPU
times of the two. They include reading the file, encryption, the network, and writing the file.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parents[1]
MEMORY = "/dev/shm"
MB = 10**6
KEY = bytes(32)
LIMIT = 60.0  # seconds


def run(tree: Path, *words: object) -> subprocess.Popen[str]:
    """Start this program with the modules of a version."""
    env = os.environ | {"PYTHONPATH": str(tree / "launcher")}
    argv = [sys.executable, "-P", __file__, *map(str, words)]
    return subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def serve(stage: str) -> None:
    """Print the port; then print the CPU time for each line of the input."""
    from hpclaunch.system.staging.mesh import Mesh
    from hpclaunch.system.staging.node import StageNode

    print(Mesh(KEY, StageNode(stage, os.path.dirname(stage))).port, flush=True)
    for _ in sys.stdin:
        print(time.process_time(), flush=True)


def fetch(tree: Path, root: Path, runs: int) -> None:
    """Fetch the file so many times; print the seconds of each as JSON."""
    from hpclaunch.core.staging.copies import Transfer
    from hpclaunch.system.staging.mesh import Mesh
    from hpclaunch.system.staging.messages import PeerPlace
    from hpclaunch.system.staging.node import StageNode
    from hpclaunch.system.staging.orders import Look

    stage = root / "fetcher" / "ckpt"
    node = StageNode(str(stage), str(root))
    mesh = Mesh(KEY, node)
    with run(tree, "--serve", root / "source" / "ckpt") as source:

        def source_cpu() -> float:
            source.stdin.write("\n")
            source.stdin.flush()
            return float(source.stdout.readline())

        port = int(source.stdout.readline())
        mesh.lead(1, 0, [PeerPlace(1, "source", "127.0.0.1", port, "127.0.0.1")])
        found = mesh.peers[1].ask(Look()).result(LIMIT).entries
        for _ in range(runs):
            before, began = (source_cpu(), time.process_time()), time.perf_counter()
            node.fetch([Transfer(0, each, 1) for each in found], "", mesh.peers)
            took = time.perf_counter() - began
            spent = source_cpu() - before[0], time.process_time() - before[1]
            print(json.dumps([took, *spent]), flush=True)
            for each in found:
                (stage / each.name).unlink()
        source.stdin.close()
    mesh.close()


def measure(tree: Path, size: int, runs: int) -> list[float]:
    """Return the medians of `time`, `source` and `fetcher`."""
    root = Path(tempfile.mkdtemp(prefix="bench-", dir=MEMORY))
    try:
        for name in ("source", "fetcher"):
            (root / name / "ckpt").mkdir(parents=True)
        with (root / "source" / "ckpt" / "model.pt").open("wb") as file:
            for _ in range(size):
                file.write(os.urandom(MB))
        with run(tree, "--fetch", tree, "--root", root, "--runs", runs) as fetcher:
            rows = [json.loads(line) for line in fetcher.stdout]
        if not rows:
            sys.exit(f"{tree}: nothing was fetched")
        return [statistics.median(column) for column in zip(*rows, strict=True)]
    finally:
        shutil.rmtree(root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="the directory of an earlier version")
    parser.add_argument("--size", type=int, default=1000, help="MB of the file")
    parser.add_argument("--runs", type=int, default=5)
    for name in ("--serve", "--fetch", "--root"):  # processes of this program
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(str(args.serve))
        return
    if args.fetch:
        fetch(args.fetch, args.root, args.runs)
        return
    print(f"{args.size} MB from one node to another, {os.cpu_count()} CPUs; medians of {args.runs}")
    print(f"{'':12}{'time':>10}{'source':>10}{'fetcher':>10}")
    for name, tree in (("before", args.before), ("now", HERE)):
        if tree is not None:
            figures = "".join(f"{figure:8.2f} s" for figure in measure(tree, args.size, args.runs))
            print(f"{name:12}{figures}", flush=True)


if __name__ == "__main__":
    main()
