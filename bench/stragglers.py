"""Time the detection of slow ranks, and count the healthy jobs in which a rank is wrongly named.

    python bench/stragglers.py [--slow 12] [--healthy 12] [--workers 3] [--seed N] [--jobs 1]
                               [--factor 1.3] [--seconds 45] [--kinds KIND,...]

Each job trains with DDP (`tests/slurm/scripts/pacing.py`) on this machine. In half of the healthy
jobs the steps keep the CPU busy: these run one at a time, since they need the CPUs. The time is
from the start of the job to the line that names the rank. torchrun never names a rank.
"""

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "tests" / "slurm" / "scripts" / "pacing.py"
HPCLAUNCH = Path(sys.executable).parent / "hpclaunch"
# What the launcher prints for each kind. The last two need a CPU of their own for each worker.
CAUSES = {
    "loader": "it waits, but not for a CPU",
    "compute": "it computes for",
    "storage": "it waits for storage",
    "quota": "the CPU quota",
    "stolen": "it waits for a CPU",
}
COMPUTING = {"quota", "stolen"}


@dataclass(frozen=True, slots=True)
class Job:
    kind: str  # "" for a healthy job
    rank: int = -1
    computes: bool = False


@dataclass(frozen=True, slots=True)
class StragglerOutcome:
    """The rank and cause that were named in one job, compared with the facts."""

    kind: str
    seconds: float | None  # None: no rank was named
    is_right_rank: bool
    is_right_cause: bool


def run(job, options):
    workers = min(options.workers, os.cpu_count() or 1) if job.computes else options.workers
    with tempfile.TemporaryDirectory() as directory:
        environ = {**os.environ, "SECONDS": str(options.seconds)}
        environ |= {"SLOW": f"{job.kind}:{job.rank}:{options.factor}"} if job.kind else {}
        environ |= {"WORK": "compute"} if job.computes else {}
        begun = time.monotonic()
        process = subprocess.Popen(
            [HPCLAUNCH, "--nproc", str(workers), SCRIPT],
            cwd=directory,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        named, account = None, ""
        for line in process.stdout:
            if named is None and " a straggler: " in line:
                named = time.monotonic() - begun
            if named is not None:
                account += line
        process.wait()
    found = re.search(r"rank (\d+) on", account)
    rank = found is not None and int(found[1]) == job.rank
    cause = bool(job.kind) and CAUSES[job.kind] in account
    if account and not (rank and cause):
        print(f"{job}: {account}", file=sys.stderr)
    return StragglerOutcome(job.kind or "healthy", named, rank, cause)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slow", type=int, default=12)
    parser.add_argument("--healthy", type=int, default=12)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="at a time, of those that sleep")
    parser.add_argument("--factor", type=float, default=1.3)
    parser.add_argument("--seconds", type=float, default=45.0, help="for which each job trains")
    parser.add_argument("--kinds", default=",".join(CAUSES))
    options = parser.parse_args()
    rng = random.Random(options.seed)
    kinds = options.kinds.split(",")
    jobs = []
    for n in range(options.slow):
        kind = kinds[n % len(kinds)]
        ranks = 2 if kind in COMPUTING else options.workers
        jobs.append(Job(kind, rng.randrange(ranks), kind in COMPUTING))
    jobs += [Job("", computes=bool(n % 2)) for n in range(options.healthy)]
    rng.shuffle(jobs)
    by_kind = defaultdict(list)
    for computes in (True, False):
        with ThreadPoolExecutor(1 if computes else options.jobs) as pool:
            alike = [job for job in jobs if job.computes is computes]
            for outcome in pool.map(lambda job: run(job, options), alike):
                by_kind[outcome.kind].append(outcome)
    print("kind      jobs named  median  longest  rank  cause")
    for kind in (*kinds, "healthy"):
        print_row(kind, by_kind[kind])


def print_row(kind, outcomes):
    times = [each.seconds for each in outcomes if each.seconds is not None]
    median = f"{statistics.median(times):.0f} s" if times else "-"
    longest = f"{max(times):.0f} s" if times else "-"
    right = sum(each.is_right_rank for each in outcomes)
    causes = sum(each.is_right_cause for each in outcomes)
    jobs = len(outcomes)
    print(f"{kind:9} {jobs:4} {len(times):5} {median:>7} {longest:>8} {right:5} {causes:6}")


if __name__ == "__main__":
    main()
