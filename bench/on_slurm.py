"""Time launches and restarts on several nodes of a real Slurm cluster.

    python bench/on_slurm.py [--shapes 2x4 3x2] [--runs 3] [--cold] [--stages]

A shape is nodes x workers per node. `srun hpclaunch`, `srun torchrun` (c10d rendezvous on the first
node) and `srun python -c "import torch"` run in turn, as steps of one allocation. The nodes are
network namespaces of this machine and share its clock and its CPUs. Needs root.
"""

import argparse
import itertools
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from measuring import COLD, HPCLAUNCH, TORCHRUN, WORKER, Command, Run, command, running, timed
from side_by_side import Launcher, compare

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from slurm.cluster import CONTROLLER, TOOLS, Cluster, Process, remove_stale

CPUS = 8  # per node, in Slurm's configuration
PORTS = itertools.count(29400)  # a new port for every run of torchrun


class Allocation:
    """An allocation of some nodes, for one step after the other."""

    def __init__(self, cluster: Cluster, nodes: int) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self.env = cluster.env | {"XDG_STATE_HOME": str(cluster.directory / "home")}
        wanted = ["--no-shell", f"--nodes={nodes}", f"--cpus-per-task={CPUS}"]
        output = cluster.on(CONTROLLER, ["salloc", *wanted, "--ntasks-per-node=1"])
        self._job = re.search(r"Granted job allocation (\d+)", output)[1]

    def release(self) -> None:
        self._cluster.on(CONTROLLER, ["scancel", self._job])

    def srun(self, argv: list[str], directory: Path) -> list[str]:
        """Return the command line of a step with one task per node."""
        step = ["srun", f"--jobid={self._job}", f"--nodes={self._nodes}", "--ntasks-per-node=1"]
        step += [f"--cpus-per-task={CPUS}", "--overlap"]
        return self._cluster.controller.command([*step, *argv], cwd=directory)

    def command(
        self,
        name: str,
        workers: int,
        *,
        nnodes: str,
        max_restarts: int = 3,
        more: Sequence[str] = (),
    ) -> Command:
        """Return the command for `workers` per node; torchrun meets on the first node."""
        more = [f"--nnodes={nnodes}", *more]
        if name == TORCHRUN:
            more += ["--rdzv-backend=c10d", f"--rdzv-endpoint=n1:{next(PORTS)}"]
        start = command(name, workers, max_restarts=max_restarts, more=more)
        return replace(start, env=start.env | self.env)

    def launcher(self, name: str, workers: int, script: Sequence[object] = (WORKER,)) -> Launcher:
        """Return a launcher that starts `workers` per node."""

        @contextmanager
        def launch() -> Iterator[Run]:
            start = self.command(name, workers, nnodes=str(self._nodes))
            try:
                with running([start], self._nodes * workers, self.srun, script) as run:
                    yield run
            finally:  # after SIGKILL of srun, its tasks still run
                kill(self._cluster.processes())

        return launch

    def import_torch(self) -> float:
        return timed(self.srun([sys.executable, "-c", "import torch"], Path("/")), self.env)


@contextmanager
def allocation(cluster: Cluster, nodes: int) -> Iterator[Allocation]:
    """Allocate some nodes, and release them in any case."""
    held = Allocation(cluster, nodes)
    try:
        yield held
    finally:
        held.release()


def kill(processes: Iterable[Process]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):  # it may have ended together with another
            process.kill()


def host_to_lose(cluster: Cluster, run: Run, *, head: bool) -> str:
    """Return the host of the head, or that of the highest rank."""
    pid = run.reports[-1].pid
    (host,) = {p.host for p in cluster.processes() if p.pid == pid}
    return "n1" if head else host


def why_not(*more: str) -> str:
    """Return what this machine lacks for a cluster, and for `more` tools, or ""."""
    missing = [tool for tool in (*TOOLS, *more) if shutil.which(tool) is None]
    return ", ".join(missing) or ("root" if os.geteuid() else "")


@contextmanager
def cluster_of(nodes: int) -> Iterator[Cluster]:
    """Start a cluster, and stop it in any case."""
    remove_stale()
    cluster = Cluster(open_to_all=[])
    try:
        cluster.up(nodes=nodes, gpus=1, cpus=CPUS)
        yield cluster
    finally:
        cluster.down()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=["2x4", "3x2"], metavar="NODESxWORKERS")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--stages", action="store_true")
    args = parser.parse_args()
    shapes = [tuple(map(int, shape.split("x"))) for shape in args.shapes]
    if why_not():
        print(f"not measured on Slurm: needs {why_not()}")
        return
    names = [HPCLAUNCH, *([COLD] if args.cold else []), TORCHRUN]
    with cluster_of(max(nodes for nodes, _ in shapes)) as cluster:
        for nodes, workers in shapes:
            with allocation(cluster, nodes) as held:
                launchers = {name: held.launcher(name, workers) for name in names}
                title = f"{nodes} nodes x {workers} workers"
                compare(title, launchers, held.import_torch, runs=args.runs, stages=args.stages)


if __name__ == "__main__":
    main()
