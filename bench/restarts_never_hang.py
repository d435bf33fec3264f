"""Count the restarts that hang, or use more than one restart, after SIGKILL of a worker.

    python bench/restarts_never_hang.py [--restarts 50] [--torchrun 3] [--workers 4] [--as-shipped]

For hpclaunch, four in five restarts are of one job, and the others each of a new job; for torchrun,
all are of new jobs. The ranks are killed in turn, at random moments. --as-shipped leaves torchrun's
store shared between rounds, which is its default.
"""

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import replace

from measuring import HPCLAUNCH, TORCHRUN, Command, running, standalone

PAUSE = 0.2  # seconds, at most, from the start of a round to the next kill


def survives(run_of: Command, workers: int, kills: int) -> Iterator[bool]:
    """Start a new job; yield for each kill whether it led to exactly one restart.

    End after a hang.
    """
    with running([run_of], workers) as run:
        moment = run.began
        for kill in range(kills):
            if run.wait_until_ready(moment) is None:
                yield False
                return
            before = max(r.restarts for r in run.reports)
            time.sleep(random.uniform(0, PAUSE))
            moment = run.kill_worker(kill % workers)
            after = run.wait_until_ready(moment)
            yield after is not None and max(r.restarts for r in after) == before + 1
            if after is None:
                return


def count(run_of: Command, workers: int, jobs: list[int]) -> tuple[int, int]:
    """Return (bad restarts, all restarts) of jobs with so many kills each.

    After a hang, a new job does the rest.
    """
    bad, done = 0, 0
    for kills in jobs:
        left = kills
        while left:
            for good in survives(run_of, workers, left):
                left -= 1
                done += 1
                bad += not good
    return bad, done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--restarts", type=int, default=50)
    parser.add_argument("--torchrun", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--as-shipped", action="store_true")
    args = parser.parse_args()
    fresh = args.restarts // 5
    in_a_row = args.restarts - fresh
    plans = {HPCLAUNCH: [in_a_row, *[1] * fresh], TORCHRUN: [1] * args.torchrun}
    for launcher, kills in plans.items():
        jobs = [number for number in kills if number]
        if not jobs:
            continue
        start = standalone(launcher, args.workers, max_restarts=2 * args.restarts)
        if args.as_shipped and launcher == TORCHRUN:
            start = replace(start, env={})
        began = time.monotonic()
        bad, done = count(start, args.workers, jobs)
        took = time.monotonic() - began
        print(
            f"{launcher}: {bad} of {done} hang or use more than one restart "
            f"({args.workers} workers; {took:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
