"""Time the restart of a job that loses a node of a real Slurm cluster.

    python bench/on_slurm_losses.py [--runs 3] [--workers 2] [--torchrun]

The time is from the loss until all remaining ranks have initialised their process group again. Of
three nodes, that of the highest rank or the head's is lost: its launcher is killed, all of its
processes are, or its network is cut. With a spare, the job has two nodes. torchrun runs with
`--nnodes 2:3` and has a minute each time. Needs root.
"""

import argparse
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from measuring import HPCLAUNCH, TORCHRUN, Run, median, running
from on_slurm import Allocation, Cluster, allocation, cluster_of, host_to_lose, kill, why_not

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
        start = self.held.command(name, self.workers, nnodes=nnodes)
        try:
            with running([start], ranks, self.held.srun) as run:
                yield run
        finally:
            for node in self.cluster.nodes.values():
                node.heal()
            kill(self.cluster.processes())

    def _lose(self, run: Run, how: str, *, head: bool) -> float:
        """Take a node away; return the time."""
        host = host_to_lose(self.cluster, run, head=head)
        every = self.cluster.processes(host=host)
        launchers = [p for p in every if re.search(LAUNCHER, p.command)]
        moment = time.monotonic()
        if how == "cut off":
            self.cluster.nodes[host].cut()
        else:
            kill(launchers if how == "killed" else every)
        return moment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--torchrun", action="store_true", help="measure torchrun too, which does not survive"
    )
    args = parser.parse_args()
    if missing := why_not():
        print(f"not measured on Slurm: needs {missing}")
        return
    with cluster_of(NODES) as cluster:
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


if __name__ == "__main__":
    main()
