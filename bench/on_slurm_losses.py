"""Time the restart of a job that loses a node of a real Slurm cluster.

    python bench/on_slurm_losses.py [--runs 3] [--workers 2] [--torchrun]

The time is from the loss until all remaining ranks have initialised their process group again. Of
three nodes, that of the highest rank or the head's is lost: its launcher is killed, all of its
processes are, or its network is cut. With a spare, the job has two nodes. torchrun runs with
`--nnodes 2:3` and has a minute each time. Needs root.
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

from hpclaunch.core.protocol.timing import DEFAULTS

NODES = 3
LAUNCHER = r"^\S*python\S* \S*/(hpclaunch|torchrun) "


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of one node, in jobs with `workers` per node."""

    cluster: Cluster
    held: Allocation
    workers: int

    def measure(
        self, name: str, how: str, *, spare: bool, head: bool, after: float
    ) -> float | None:
        """Return the seconds from the loss to the next round, or None if there was none. The loss
        comes `after` so many seconds of the first round.
        """
        nnodes = f"{NODES - 1}" if spare else f"{NODES - 1}:{NODES}"
        with_workers = NODES - 1 if spare else NODES
        with self._job(name, nnodes, with_workers * self.workers) as run:
            if run.wait_until_ready(run.began) is None:
                return None
            time.sleep(after)
            moment = self._lose(run, how, head=head)
            run.workers = (NODES - 1) * self.workers
            again = run.wait_until_ready(moment)
            return None if again is None else max(r.ready_at for r in again) - moment

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
        """Take a node away; return the time."""
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
        with suppress(ProcessLookupError):  # it may have ended together with another
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--torchrun", action="store_true", help="measure torchrun too, which does not survive"
    )
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
            ("killed with all its processes", False, False),
            ("cut off", False, False),
            ("killed", True, False),
            ("killed", False, True),
            ("killed with all its processes", False, True),
            ("cut off", False, True),
        )
        for how, spare, head in cases:
            for name in [HPCLAUNCH, *([TORCHRUN] if args.torchrun and not spare else [])]:
                with allocation(cluster, NODES) as held:
                    losses = Losses(cluster, held, args.workers)
                    # The silence counts from the last beat: spread the losses between two beats.
                    times = [
                        losses.measure(name, how, spare=spare, head=head, after=1.0 + pause)
                        for pause in (DEFAULTS.quiet_beat * n / args.runs for n in range(args.runs))
                    ]
                left = "a spare takes over" if spare else f"{NODES - 1} nodes are left"
                restarted = f"{sum(t is not None for t in times)} of {args.runs} restarted"
                who = "the head" if head else "a node"
                line = f"{name}: {who} is {how}, {left}: {median(times):.2f} s, {restarted}"
                print(line, flush=True)
    finally:
        cluster.down()


if __name__ == "__main__":
    main()
