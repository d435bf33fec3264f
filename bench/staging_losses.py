"""Time the loss of a node on a Slurm cluster, with checkpoints on slow storage and with --stage.

    python bench/staging_losses.py [--runs 2] [--spares 1] [--size 1000] [--every 20]
        [--loss-timeout 3] [--rate 100] [--latency 20]

Three nodes train with one worker each, and a fourth is the spare, unless --spares is 0. Once a
checkpoint is complete, the node with the highest rank, or the head's node, is lost as without
power: its network is cut, and its processes get SIGKILL. `new round` is the time from that until
the launcher starts the next round: the loss is found, and every node has the checkpoint. `restart`
ends when all ranks have loaded it and done the first step; `repeated` are the steps, in seconds,
that were lost with the node. The nodes are network namespaces of this machine: they share its
memory, its CPUs and the storage of slow_storage.py. Needs root.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

import measuring
import psutil
import slow_storage
from measuring import HPCLAUNCH, Run, median, running
from on_slurm import Allocation, allocation, cluster_of, host_to_lose, kill, why_not
from staging import STAGE, WORKER, Case, Events, facts, wait_for

from slurm.cluster import Cluster

NODES = 3


@dataclass(frozen=True, slots=True)
class Loss:
    new_round: float
    restart: float
    repeated: float


@contextmanager
def no_free_memory() -> Iterator[None]:
    """Fill the free memory with the cache of a file; whatever needs memory takes its place.

    A virtual machine may get free memory from its host only when it is used, and give it back
    within seconds; that would take longer than the loss itself.
    """
    with tempfile.TemporaryFile(buffering=0) as holes:
        holes.truncate(psutil.virtual_memory().total)
        buffer = bytearray(2**21)
        while holes.readinto(buffer):
            pass
        yield


def lose(cluster: Cluster, run: Run, *, head: bool) -> float:
    """Lose the head's node, or that of the highest rank; return the time."""
    host = host_to_lose(cluster, run, head=head)
    moment = time.monotonic()
    cluster.nodes[host].cut()  # else what is killed last may report what was killed first
    kill(cluster.processes(host=host))
    return moment


def measure(
    cluster: Cluster, held: Allocation, case: Case, where: Path, args, *, head: bool
) -> Loss | None:
    """Run one training until it continues after a loss."""
    nodes = f"{NODES}" if args.spares else f"{NODES - 1}:{NODES}"
    more = [f"--loss-timeout={args.loss_timeout:g}"]
    more += ["--checkpoint-dir", str(where), *[STAGE] * case.stages]
    start = held.command(HPCLAUNCH, 1, nnodes=nodes, max_restarts=10, more=more)
    script = (WORKER, where, "--how", case.how, "--size", args.size, "--every", args.every)
    where.mkdir()
    try:
        with running([start], NODES, held.srun, script) as run:
            if run.wait_until_ready(run.began) is None:
                return None
            limit = 60 + 3 * args.every + 4 * args.size / args.rate
            wait_for(lambda: len([*Events.read(run).stalls()]) >= 2, limit)
            time.sleep(args.every / 2)
            run.workers = NODES - 1 + args.spares
            with no_free_memory():
                moment = lose(cluster, run, head=head)
                ready = run.wait_until_ready(moment)
            if ready is None:
                return None
            steps = [step for steps in Events.read(run).rounds for step in steps]
            first = min(step.number for step in steps if step.began > moment)
            before = [step for step in steps if step.ended < moment and step.number >= first]
            repeated = sum(step.seconds for step in before)
            began = [at for at, fact in facts(run) if fact["fact"] == "RoundBegan" and at > moment]
            restart = max(report.ready_at for report in ready) - moment
            return Loss(min(began) - moment, restart, repeated)
    finally:
        for node in cluster.nodes.values():
            node.heal()
        kill(cluster.processes())
        shutil.rmtree(where, ignore_errors=True)


def compare(cluster: Cluster, storage: Path, name: str, how: str, args) -> None:
    left = "a spare takes over" if args.spares else f"{NODES - 1} nodes are left"
    saves = f"{name}, {args.size} MB, saved every {args.every:g} s"
    print(f"\n{saves}; {left}; --loss-timeout {args.loss_timeout:g}; medians of {args.runs} losses")
    print(f"{'':40}{'new round':>12}{'restart':>12}{'repeated':>12}", flush=True)
    for lost, head in (("a node is lost", False), ("the head's node is lost", True)):
        for stages in (False, True):
            case = Case(name, how, NODES, stages)
            found = []
            for number in range(args.runs):
                with allocation(cluster, NODES + args.spares) as held:
                    where = storage / f"{how}-{head}-{stages}-{number}"
                    found.append(measure(cluster, held, case, where, args, head=head))
            losses = [loss for loss in found if loss is not None]
            columns = zip(*map(astuple, losses), strict=True)
            figures = "".join(f"{median(column):10.2f} s" for column in columns)
            print(f"{case.title + ': ' + lost:40}{figures or '  not measured'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2, help="losses of each row")
    parser.add_argument("--spares", type=int, choices=(0, 1), default=1, help="spare nodes")
    parser.add_argument("--size", type=int, default=1000, help="MB of a checkpoint")
    parser.add_argument("--every", type=float, default=20, help="seconds between saves")
    parser.add_argument("--loss-timeout", type=float, default=3, help="in seconds, at least 2")
    slow_storage.add_options(parser)
    args = parser.parse_args()
    if missing := why_not() or slow_storage.why_not():
        print(f"not measured: needs {missing}")
        return
    measuring.LIMIT = 60 + 4 * args.size / args.rate
    directory = Path(tempfile.mkdtemp(prefix="bench-storage-"))
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}", flush=True)
    try:
        with (
            slow_storage.slow_storage(directory, args.rate, args.latency) as storage,
            cluster_of(NODES + args.spares) as cluster,
        ):
            compare(cluster, storage, "torch.save", "torch", args)
            compare(cluster, storage, "DCP", "dcp", args)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
