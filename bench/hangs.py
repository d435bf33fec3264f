"""Workers that hang in every way, one in each round, and how long it takes until that is found.

    python bench/hangs.py [--hangs 20] [--workers 4] [--seed N] [--jobs 1] [--kinds KIND,...]

Each job trains with DDP (`tests/slurm/scripts/hanging.py`) on this machine, and in each of its
rounds one rank hangs. The table says for each kind how many were found, how long after the hang
the next round began, whether the right rank was named, and whether the right line was. torchrun
finds none of them until gloo gives up, after 30 minutes.
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
SCRIPT = ROOT / "tests" / "slurm" / "scripts" / "hanging.py"
HPCLAUNCH = Path(sys.executable).parent / "hpclaunch"
KINDS = (
    *("stopped", "asleep", "skipped", "locked", "holding", "endless", "reading"),
    *("barrier", "loader", "end"),
)
A_JOB = 6  # hangs
LIMIT = 200.0  # seconds for one hang


@dataclass(frozen=True, slots=True)
class Found:
    kind: str
    seconds: float | None  # from the hang to the end of the round; None: not found
    rank: bool  # the right one was named
    line: bool | None  # None: there is none


def job(hangs, workers):
    """Run one job; one Found for each hang."""
    with tempfile.TemporaryDirectory() as directory:
        told = " ".join(f"{kind}:{rank}:{step}" for kind, rank, step in hangs)
        command = [HPCLAUNCH, "--nproc", str(workers), "--max-restarts", str(len(hangs)), SCRIPT]
        environ = {**os.environ, "HANGS": told}
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return list(follow(process, hangs))


def follow(process, hangs):
    began = line = None
    lines, said, number = [], [], 0
    for text in process.stdout:
        said.append(text)
        now = time.monotonic()
        if match := re.search(r"hangs in line (\d+)", text):
            began, line = now, int(match[1])
        elif text.startswith("  "):
            lines.append(text)
        elif "restart" in text and began is not None:
            kind, rank, _ = hangs[number]
            account = "".join(lines)
            right = f"rank {rank} on" in account
            there = f"hanging.py:{line}," in account if line else None
            if not right or there is False:
                print(f"{kind} of rank {rank}, line {line}:\n{account}", file=sys.stderr)
            yield Found(kind, now - began, right, there)
            number, began, lines = number + 1, None, []
        if "no step for" in text:
            lines = [text]
    code = process.wait()
    for kind, _, _ in hangs[number:]:
        yield Found(kind, None, False, None)
    if code or number < len(hangs):
        print(f"a job has ended with {code}: {hangs}, {said[-5:]}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hangs", type=int, default=20)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="at a time")
    parser.add_argument("--kinds", default=",".join(KINDS))
    options = parser.parse_args()
    rng = random.Random(options.seed)
    kinds = options.kinds.split(",")
    hangs = [
        (kinds[n % len(kinds)], rng.randrange(options.workers), rng.randrange(8, 25))
        for n in range(options.hangs)
    ]
    rng.shuffle(hangs)
    jobs = [hangs[at : at + A_JOB] for at in range(0, len(hangs), A_JOB)]
    by_kind = defaultdict(list)
    with ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(lambda each: job(each, options.workers), jobs):
            for each in found:
                by_kind[each.kind].append(each)
    print("kind       hangs found  median  longest  rank  line")
    for kind in kinds:
        print_row(kind, by_kind[kind])
    print_row("all", [found for each in by_kind.values() for found in each])


def print_row(name, found):
    times = [f.seconds for f in found if f.seconds is not None]
    lines = [f.line for f in found if f.line is not None]
    median = f"{statistics.median(times):.1f} s" if times else "-"
    longest = f"{max(times):.1f} s" if times else "-"
    right = sum(f.rank for f in found)
    line = f"{sum(lines)}/{len(lines)}" if lines else "-"
    print(f"{name:10} {len(found):5} {len(times):5} {median:>7} {longest:>8} {right:5} {line:>5}")


if __name__ == "__main__":
    main()
