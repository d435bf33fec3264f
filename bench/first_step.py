"""Time a launch, and a restart after SIGKILL of a worker, to the first optimizer step.

    python bench/first_step.py [--workers 1 2 4 8] [--runs 3] [--shapes 2x4] [--stages]
                               [--kinds light heavy transformers project]

A DDP script with AdamW and a scheduler runs under hpclaunch and torchrun in turn on this machine.
"heavy" also imports pandas and scikit-learn, "transformers" trains a tiny BERT, and "project" does
the same with the import in another module of the user's. The worker is killed some seconds after
the first step, while the job trains; the next round loads the checkpoint of the first one. The last
column is the memory of all workers and their launcher, each shared page counted once.

Shapes are nodes x workers per node, on a real Slurm cluster on this machine (`on_slurm.py`; needs
root). Their memory is the proportional set size of the workers only. --stages shows the time of
each stage.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import side_by_side
from measuring import HPCLAUNCH, TORCHRUN, Run, median, running, standalone
from on_slurm import Allocation, allocation, cluster_of, why_not
from stages import LAUNCH, RESTART, print_stages

WORKER = Path(__file__).parent / "first_step_worker.py"
KINDS = {
    "light": "",
    "heavy": "import pandas\nimport sklearn.linear_model\n",
    "transformers": "from transformers import BertConfig, BertForSequenceClassification\n",
    "project": "from models import BertConfig, BertForSequenceClassification\n",
}
FIRST_LINES = "from time import monotonic\nbegan = monotonic()\n"
REST = 4.0  # seconds from the first step to the kill
Start = Callable[[str, Path], AbstractContextManager[Run]]  # takes a launcher and a script


@dataclass
class Figures(side_by_side.Figures):
    """Values of one launcher, also of the memory in MB."""

    memory: list[float] = field(default_factory=list)

    def rest(self, run: Run) -> None:
        time.sleep(REST)
        pids = [*(p.pid for p in run.launchers), *(r.pid for r in run.reports)]
        self.memory.append(memory(pids))


def memory(pids: Sequence[int]) -> float:
    """Return the memory of these processes and their descendants, in MB."""
    processes = {psutil.Process(pid) for pid in pids}
    processes |= {child for p in processes for child in p.children(recursive=True)}
    found = 0
    for process in processes:
        try:
            found += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return found / 1e6


def on_this_machine(workers: int) -> Start:
    def start(launcher: str, script: Path) -> AbstractContextManager[Run]:
        return running([standalone(launcher, workers)], workers, script=[script])

    return start


def on_slurm(held: Allocation, workers: int) -> Start:
    def start(launcher: str, script: Path) -> AbstractContextManager[Run]:
        return held.launcher(launcher, workers, [script])()

    return start


def measure(kind: str, where: str, runs: int, start: Start, *, stages: bool) -> None:
    figures = {name: Figures() for name in (HPCLAUNCH, TORCHRUN)}
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        script = Path(directory) / "train.py"
        script.write_text(FIRST_LINES + KINDS[kind] + WORKER.read_text())
        script.with_name("models.py").write_text(KINDS["transformers"])
        for _ in range(runs):
            for name, each in figures.items():
                each.add(start(name, script))
    print(f"\n{kind}, {where}; medians of {runs}")
    print(f"{'':28}{'launch':>10}{'ratio':>8}{'restart':>10}{'ratio':>8}{'memory':>11}")
    usual = figures[TORCHRUN]
    for name, each in figures.items():
        line = f"{name:28}"
        for theirs, ours in ((usual.launch, each.launch), (usual.restart, each.restart)):
            ratio = "" if name == TORCHRUN else f"{median(theirs) / median(ours):.1f}"
            line += f"{median(ours):8.2f} s{ratio:>8}"
        print(f"{line}{median(each.memory):8.0f} MB", flush=True)
    if stages:
        print_stages("launch", LAUNCH, {name: f.launch_stages for name, f in figures.items()})
        print_stages("restart", RESTART, {name: f.restart_stages for name, f in figures.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--shapes", nargs="*", default=[], metavar="NODESxWORKERS")
    parser.add_argument("--stages", action="store_true")
    args = parser.parse_args()
    for kind in args.kinds:
        for workers in args.workers:
            where = f"{workers} worker{'s' if workers > 1 else ''}"
            measure(kind, where, args.runs, on_this_machine(workers), stages=args.stages)
    shapes = [tuple(map(int, shape.split("x"))) for shape in args.shapes]
    if shapes and why_not():
        print(f"not measured on Slurm: needs {why_not()}")
    elif shapes:
        measure_on_slurm(shapes, args)


def measure_on_slurm(shapes: Sequence[tuple[int, ...]], args: argparse.Namespace) -> None:
    with cluster_of(max(nodes for nodes, _ in shapes)) as cluster:
        for nodes, workers in shapes:
            with allocation(cluster, nodes) as held:
                where = f"{nodes} nodes x {workers} workers"
                for kind in args.kinds:
                    measure(kind, where, args.runs, on_slurm(held, workers), stages=args.stages)


if __name__ == "__main__":
    main()
