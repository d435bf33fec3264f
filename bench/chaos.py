"""Measure the goodput of one job on a real Slurm cluster with faults of all kinds, one every 10 s.

    python bench/chaos.py [--minutes 30] [--every 10] [--seed N] [--plain 90] [--workers 1]

The job has six nodes. The faults are those of tests/slurm/faults.py. They begin at random moments
and last up to 12 s, so several may overlap. At the end all nodes must take part, the result must
be right, each epoch must have been saved once, and no process may be left.

The goodput is the number of saved epochs, divided by the number that the same job saves in that
time without faults, which is measured first. An epoch takes the same time with any number of
workers; the second figure counts an epoch in proportion to its workers. Needs root. The nodes are
network namespaces of this machine and share its CPUs.
"""

import argparse
import heapq
import itertools
import random
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from on_slurm import Cluster, cluster_of, why_not

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "stand_ins"))

from slurm.cluster import eventually
from slurm.endless import PATIENCE, Endless
from slurm.faults import Fault, Faults
from slurm.training import newest, saves

NODES = 6


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a job between its first epoch and its last."""

    seconds: float
    epochs: int
    shares: float  # epochs, each counted in proportion to its workers
    longest: float  # seconds without a checkpoint

    @property
    def rate(self) -> float:
        return self.epochs / self.seconds


def work(training: Endless, world: int) -> Work:
    files = [training.file(epoch) for epoch in range(newest(training.saved) + 1)]
    times = [file.stat().st_mtime for file in files]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    share = sum(workers for _, _, workers in saves(training.saved)[1:]) / world
    return Work(times[-1] - times[0], len(pauses), share, max(pauses))


class Chaos:
    """Faults at random moments in one job, which may overlap."""

    def __init__(self, training: Endless, rng: random.Random, every: float) -> None:
        self._training, self._rng, self._every = training, rng, every
        self._faults = Faults(training, rng)
        self._order = itertools.count(1)
        self._healing: list[tuple[float, int, Fault, ExitStack]] = []
        self._began = time.monotonic()

    def inject(self, seconds: float) -> int:
        """Inject faults for so many seconds and wait until the last one is healed.

        Return their number.
        """
        end, at, number = self._began + seconds, self._began, 0
        try:
            while (at := at + self._rng.expovariate(1 / self._every)) < end:
                fault = self._faults.draw()
                self._wait(at)
                while fault.network and any(other.network for _, _, other, _ in self._healing):
                    self._heal_next()
                number += 1
                self._begin(number, fault)
            self._wait(end)
            return number
        finally:
            while self._healing:
                self._heal_next()

    def _begin(self, number: int, fault: Fault) -> None:
        epoch = newest(self._training.saved)
        passed = time.monotonic() - self._began
        now = time.strftime("%H:%M:%S")
        print(f"{now} {passed:6.1f} s {number:4}. epoch {epoch}: {fault.words}", flush=True)
        stack = ExitStack()
        stack.enter_context(fault.during)
        heapq.heappush(
            self._healing, (time.monotonic() + fault.lasts, next(self._order), fault, stack)
        )

    def _wait(self, until: float) -> None:
        """Wait, and heal the faults that end meanwhile. AssertionError if the job has stopped."""
        while True:
            heal = self._healing[0][0] if self._healing else until
            time.sleep(max(0.0, min(heal, until, time.monotonic() + 1) - time.monotonic()))
            if self._healing and heal <= time.monotonic():
                self._heal_next()
            elif until <= time.monotonic():
                return
            self._watch()

    def _heal_next(self) -> None:
        at, _, _, stack = heapq.heappop(self._healing)
        time.sleep(max(0.0, at - time.monotonic()))
        stack.close()

    def _watch(self) -> None:
        last = self._training.file(newest(self._training.saved))
        silent = time.time() - last.stat().st_mtime
        assert silent < PATIENCE, f"no checkpoint for {silent:.0f} s"
        assert self._training.job.id in map(int, self._training.cluster.jobs()), "the job has ended"


def require_no_processes(training: Endless) -> None:
    """AssertionError if a process of the job is left on a node."""
    cluster = training.cluster
    try:
        eventually("nodes without processes of the job", lambda: not cluster.processes())
    except AssertionError as e:
        raise AssertionError(f"{e}: {cluster.processes()}") from None


def finish(training: Endless) -> None:
    """End the job. AssertionError if its result is wrong or something is left."""
    training.wait_for_all_nodes()
    ended = training.end()
    assert not (wrong := training.problems(ended)), "; ".join(wrong)
    require_no_processes(training)


def plain(cluster: Cluster, directory: Path, workers: int, seconds: float) -> Work:
    """Return the work of a job without faults."""
    training = Endless(cluster, directory, workers)
    training.wait_for_all_nodes()
    time.sleep(seconds)
    finish(training)
    return work(training, NODES * workers)


def chaos(cluster: Cluster, directory: Path, args: argparse.Namespace) -> bool:
    """Run both jobs and print the goodput; return whether the results are right."""
    usual = plain(cluster, make(directory / "plain"), args.workers, args.plain)
    print(f"without faults: {usual.rate:.2f} epochs/s in {usual.seconds:.0f} s", flush=True)
    training = Endless(cluster, make(directory / "faults"), args.workers)
    number = 0
    try:
        training.wait_for_all_nodes()
        number = Chaos(training, random.Random(args.seed), args.every).inject(60 * args.minutes)
        finish(training)
    except AssertionError as e:
        print(f"WRONG: {e}", flush=True)
        return False
    done = work(training, NODES * args.workers)
    print("the result is right, each epoch was saved once, no process is left")
    print(
        f"goodput {done.rate / usual.rate:.0%} of {done.seconds / 60:.1f} min with {number} faults "
        f"({done.shares / done.seconds / usual.rate:.0%} of the work of all nodes); "
        f"{done.longest:.1f} s at most without a checkpoint"
    )
    return True


def make(directory: Path) -> Path:
    directory.mkdir()
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=10, help="seconds, on average")
    parser.add_argument("--seed", type=int, default=random.randrange(10000))
    parser.add_argument("--plain", type=float, default=90, help="seconds without faults")
    parser.add_argument("--workers", type=int, default=1, help="on each node")
    args = parser.parse_args()
    if missing := why_not("g++"):
        print(f"not measured on Slurm: needs {missing}")
        return
    again = f"--minutes {args.minutes:g} --every {args.every:g} --workers {args.workers}"
    print(f"python bench/chaos.py --seed {args.seed} {again}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    with cluster_of(NODES) as cluster:
        right = chaos(cluster, directory, args)
    if not right:
        sys.exit(f"the job's journals and output are in {directory}/faults")
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
