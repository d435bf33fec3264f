"""Count the nodes that a launcher wrongly gives up in ten minutes with every CPU at 100 %.

    python bench/false_alarms.py [--minutes 10] [--nodes 4] [--burners 4] [--torchrun]

An elastic job of real Slurm nodes, which could continue without any of them, runs beside --burners
processes per node that do nothing but compute. The nodes are network namespaces of this machine
and share its CPUs, so their load adds up. Needs root.
"""

import argparse
import os
import time

import psutil
from measuring import BURN, HPCLAUNCH, TORCHRUN, busy, running
from on_slurm import Cluster, allocation, cluster_of, why_not

WORKERS = 2  # on each node


def alarms(cluster: Cluster, launcher: str, nodes: int, burners: int, seconds: float) -> str:
    with allocation(cluster, nodes) as held:
        start = held.command(launcher, WORKERS, nnodes=f"1:{nodes}")
        with running([start], nodes * WORKERS, held.srun) as run:
            if run.wait_until_ready(run.began) is None:
                return "the job did not start"
            pids = [report.pid for report in run.reports]
            with busy([node.command(BURN) for node in cluster.nodes.values()] * burners):
                began = time.monotonic()
                time.sleep(seconds)
                load = os.getloadavg()[0]
                lasted = time.monotonic() - began
            gone = sum(not psutil.pid_exists(pid) for pid in pids)
            losses = (run.directory / "output").read_text(errors="replace").count(" lost")
    return (
        f"{gone} workers ended, {losses} messages of a loss, in {lasted / 60:.1f} min at "
        f"load {load:.0f} on {os.cpu_count()} CPUs"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--burners", type=int, default=4, help="on each node")
    parser.add_argument("--torchrun", action="store_true")
    args = parser.parse_args()
    if missing := why_not():
        print(f"not measured on Slurm: needs {missing}")
        return
    with cluster_of(args.nodes) as cluster:
        for launcher in [HPCLAUNCH, *([TORCHRUN] if args.torchrun else [])]:
            result = alarms(cluster, launcher, args.nodes, args.burners, 60 * args.minutes)
            print(f"{launcher}: {result}", flush=True)


if __name__ == "__main__":
    main()
