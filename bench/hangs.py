"""Time the detection of hangs of every kind, one in each round.

    python bench/hangs.py [--hangs 20] [--workers 4] [--seed N] [--jobs 1] [--kinds KIND,...]
    python bench/hangs.py --slurm 2 [--workers 2] ...

Each job trains with DDP (`tests/slurm/scripts/hanging.py`) on this machine, or on --slurm nodes of
a real Slurm cluster with --workers per node. In each of its rounds one rank hangs. The table shows
for each kind how many hangs were found, how many within 12 s (10 s or 5 steps, and 2 s), the time
from the hang to the next round, and how often the right rank and the right line were named. With
torchrun, such jobs hang until gloo times out after 30 minutes.

The nodes are network namespaces of this machine and share its CPUs. Needs root.
"""

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from on_slurm import allocation, cluster_of, why_not

SCRIPTS = Path(__file__).parent.parent / "tests" / "slurm" / "scripts"
HPCLAUNCH = Path(sys.executable).parent / "hpclaunch"
KINDS = (
    *("stopped", "asleep", "skipped", "swapped", "locked", "holding", "endless", "reading"),
    *("storage", "barrier", "left", "loader", "end", "unsent", "pipeline"),
)
BETWEEN_NODES = ("cut",)  # needs several nodes
WITHOUT_LINE = "all have begun it: a network that loses data"
HANGS_PER_JOB = 6
LIMIT = 130  # seconds for each hang
IN_TIME = 12.0  # seconds


@dataclass(frozen=True, slots=True)
class HangOutcome:
    """The detection of one hang, compared with the facts."""

    kind: str
    seconds: float | None  # from the hang to the end of the round; None: not found
    is_right_rank: bool
    is_right_line: bool | None  # None: no line is to blame


class LocalMachine:
    """This machine, as the place where jobs run."""

    def __init__(self):
        self.environ = {}

    def start(self, argv, _directory):
        return argv

    def on_each_host(self, argv):
        subprocess.run(argv, check=True)

    def hosts(self):
        return [os.uname().nodename]


class SlurmNodes(LocalMachine):
    """The nodes of a Slurm allocation, as the place where all jobs run."""

    def __init__(self, cluster, held):
        self._cluster, self._held = cluster, held
        self.environ = held.env

    def start(self, argv, directory):
        return self._held.srun(argv, directory)

    def on_each_host(self, argv):
        for host in self._cluster.nodes:
            self._cluster.on(host, argv)

    def hosts(self):
        return list(self._cluster.nodes)


@contextmanager
def stalling(place, directory):
    """Mount a file system on each host; it stalls while a file named after the host exists."""
    mounted = [directory / host for host in place.hosts()]
    for each in mounted:
        each.mkdir()
        each.with_suffix(".source").mkdir()
    paths = [f"{directory}/$(hostname){end}" for end in (".source", "", ".stalls")]
    script = f"exec {sys.executable} {SCRIPTS}/stalling.py {' '.join(paths)}"
    place.on_each_host(["sh", "-c", script])
    try:
        yield
    finally:
        heal(directory)
        place.on_each_host(["sh", "-c", f"umount --lazy {directory}/$(hostname)"])


def heal(directory):
    for file in directory.glob("*.stalls"):
        file.unlink()


def run_job(place, hangs, workers):
    """Run one job; return a HangOutcome for each hang."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hangs-")))
        if any(kind == "storage" for kind, _, _ in hangs):
            stack.enter_context(stalling(place, directory))
        plan = " ".join(f"{kind}:{rank}:{step}" for kind, rank, step in hangs)
        restarts = str(len(hangs))
        command = ["timeout", str(LIMIT * len(hangs)), str(HPCLAUNCH), "--nproc", str(workers)]
        command += ["--max-restarts", restarts, str(SCRIPTS / "hanging.py")]
        process = subprocess.Popen(
            place.start(command, directory),
            cwd=directory,
            env=os.environ | place.environ | {"HANGS": plan, "STALLING": str(directory)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return list(follow(process, hangs, directory))


def follow(process, hangs, directory):
    """Read the job's output until its end; yield a HangOutcome for each hang."""
    began = line = None
    lines, output, number = [], [], 0
    for text in process.stdout:
        output.append(text)
        now = monotonic()
        if match := re.search(r"hangs in line (\d+)", text):
            began, line = now, int(match[1])
        elif text.startswith("  "):
            lines.append(text)
        elif "; restart" in text and began is not None:
            yield compare(hangs[number], now - began, line, "".join(lines))
            number, began, lines = number + 1, None, []
        if "no step for" in text:
            lines = [text]
            heal(directory)  # a process that waits for the file system cannot be killed
    code = process.wait()
    for kind, _, _ in hangs[number:]:
        yield HangOutcome(kind, None, False, None)
    if code or number < len(hangs):
        print(f"a job ended with exit code {code}: {hangs}, {output[-20:]}", file=sys.stderr)


def compare(hang, seconds, line, account):
    """Return a HangOutcome: is the account of the launcher right?"""
    kind, rank, _ = hang
    right = (WITHOUT_LINE if kind == "cut" else f"rank {rank} on") in account
    there = f"hanging.py:{line}," in account if line else None
    if not right or there is False or (seconds > IN_TIME and kind != "endless"):
        print(f"{kind} of rank {rank}, line {line}, {seconds:.1f} s:\n{account}", file=sys.stderr)
    return HangOutcome(kind, seconds, right, there)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hangs", type=int, default=20)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="at a time")
    parser.add_argument("--kinds", help="by default all")
    parser.add_argument("--slurm", type=int, default=0, metavar="NODES")
    options = parser.parse_args()
    if options.slurm and why_not():
        print(f"not measured on Slurm: needs {why_not()}")
        return
    kinds = (*KINDS, *(BETWEEN_NODES if options.slurm else ()))
    if options.kinds:
        kinds = options.kinds.split(",")
    elif why_not():
        kinds = [kind for kind in kinds if kind != "storage"]
    rng = random.Random(options.seed)
    world = options.workers * max(1, options.slurm)
    hangs = [
        (kinds[n % len(kinds)], rng.randrange(world), rng.randrange(8, 25))
        for n in range(options.hangs)
    ]
    rng.shuffle(hangs)
    jobs = [hangs[at : at + HANGS_PER_JOB] for at in range(0, len(hangs), HANGS_PER_JOB)]
    by_kind = defaultdict(list)
    with (
        place_for_jobs(options.slurm) as place,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        for done in pool.map(lambda each: run_job(place, each, options.workers), jobs):
            for each in done:
                by_kind[each.kind].append(each)
    print("kind       hangs found in time  median  longest  rank  line")
    for kind in kinds:
        print_row(kind, by_kind[kind])
    print_row("all", [each for done in by_kind.values() for each in done])


@contextmanager
def place_for_jobs(nodes):
    if not nodes:
        yield LocalMachine()
        return
    with cluster_of(nodes) as cluster, allocation(cluster, nodes) as held:
        yield SlurmNodes(cluster, held)


def print_row(name, done):
    times = [f.seconds for f in done if f.seconds is not None]
    lines = [f.is_right_line for f in done if f.is_right_line is not None]
    median = f"{statistics.median(times):.1f} s" if times else "-"
    longest = f"{max(times):.1f} s" if times else "-"
    in_time = sum(seconds <= IN_TIME for seconds in times)
    right = sum(f.is_right_rank for f in done)
    line = f"{sum(lines)}/{len(lines)}" if lines else "-"
    print(
        f"{name:10} {len(done):5} {len(times):5} {in_time:7} {median:>7} {longest:>8} "
        f"{right:5} {line:>5}"
    )


if __name__ == "__main__":
    main()
