"""Loss of a node of a real Slurm cluster, to all ranks that are left re-initialised.

    python bench/on_slurm_losses.py [--runs 3] [--workers 2] [--torchrun]

Three nodes. On one, the launcher is killed, or all processes at once are, or it is cut off without
a word: the node of the highest rank, or the head's; with a spare the job is of two of them.
torchrun, with `--nnodes 2:3`, has a minute each time; as root only.
"""

import argparse
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from measuring import HPCLAUNCH, TORCHRUN, Run, command, median, running
from on_slurm import CPUS, PORTS, TOOLS, Allocation, Cluster, allocation, remove_stale

NODES = 3
LAUNCHER = r"^\S*python\S* \S*/(hpclaunch|torchrun) "


@dataclass(frozen=True, slots=True)
class Losses:
    """Of one node, in jobs with `workers` on each."""

    cluster: Cluster
    held: Allocation
    workers: int

    def measure(self, name: str, how: str, *, spare: bool, head: bool) -> float | None:
        """Seconds; None if the job did not go on."""
        nnodes = f"{NODES - 1}" if spare else f"{NODES - 1}:{NODES}"
        there = NODES - 1 if spare else NODES
        with self._job(name, nnodes, there * self.workers) as run:
            if run.met(run.began) is None:
                return None
            time.sleep(1.0)
            moment = self._lose(run, how, head=head)
            run.workers = (NODES - 1) * self.workers
            again = run.met(moment)
            return None if again is None else max(r.met for r in again) - moment

    @contextmanager
    def _job(self, name: str, nnodes: str, ranks: int) -> Iterator[Run]:
        more = [f"--nnodes={nnodes}"]
        if name == TORCHRUN:
            more += ["--rdzv-backend=c10d", f"--rdzv-endpoint=n1:{next(PORTS)}"]
        start = command(name, self.workers, more=more)
        here = replace(start, env=start.env | self.held.env)
        try:
            with running([here], ranks, self.held.srun) as run:
                yield run
        finally:
            for node in self.cluster.nodes.values():
                node.heal()
            _kill(self.cluster.processes())

    def _lose(self, run: Run, how: str, *, head: bool) -> float:
        """Returns the moment."""
        pid = run.reports[-1].pid
        (host,) = {p.host for p in self.cluster.processes() if p.pid == pid}
        host = "n1" if head else host
        every = self.cluster.processes(host=host)
        launchers = [p for p in every if re.search(LAUNCHER, p.command)]
        moment = time.monotonic()
        if how == "cut off":
            self.cluster.nodes[host].cut()
        else:
            _kill(launchers if how == "killed" else every)
        return moment


def _kill(processes: Iterable[Any]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):  # one that was killed may have taken it along
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--torchrun", action="store_true", help="which does not survive it")
    args = parser.parse_args()
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() or missing:
        print(f"not measured on Slurm: needs {', '.join(missing) or 'root'}")
        return
    remove_stale()
    cluster = Cluster(open_to_all=[])
    try:
        cluster.up(nodes=NODES, gpus=1, cpus=CPUS)
        cases = (
            ("killed", False, False),
            ("killed with all else", False, False),
            ("cut off", False, False),
            ("killed", True, False),
            ("killed", False, True),
            ("killed with all else", False, True),
            ("cut off", False, True),
        )
        for how, spare, head in cases:
            for name in [HPCLAUNCH, *([TORCHRUN] if args.torchrun and not spare else [])]:
                with allocation(cluster, NODES) as held:
                    losses = Losses(cluster, held, args.workers)
                    times = [
                        losses.measure(name, how, spare=spare, head=head) for _ in range(args.runs)
                    ]
                left = "a spare takes over" if spare else f"{NODES - 1} nodes are left"
                came = f"{sum(t is not None for t in times)} of {args.runs} came through"
                who = "the head" if head else "a node"
                print(f"{name}: {who} is {how}, {left}: {median(times):.2f} s, {came}", flush=True)
    finally:
        cluster.down()


if __name__ == "__main__":
    main()
