"""SIGKILL of a worker again and again: does every restart come through, with one restart used?

    python bench/restarts_never_hang.py [--restarts 50] [--torchrun 3] [--workers 4] [--as-shipped]

For hpclaunch four in five in a row, in one job, the others in a fresh job each; for torchrun all in
fresh jobs. The ranks are killed by turns, at a moment of chance. --as-shipped leaves torchrun's
store shared between rounds, as it is unless the user turns that off.
"""

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import replace

from measuring import HPCLAUNCH, TORCHRUN, Command, alone, running

REST = 0.2  # seconds, at most, between two rounds


def survives(run_of: Command, workers: int, kills: int) -> Iterator[bool]:
    """Of a fresh job, for each kill: did it come through, with one restart? A hang is the last."""
    with running([run_of], workers) as run:
        moment = run.began
        for kill in range(kills):
            if run.met(moment) is None:
                yield False
                return
            before = max(r.restarts for r in run.reports)
            time.sleep(random.uniform(0, REST))
            moment = run.kill_worker(kill % workers)
            after = run.met(moment)
            yield after is not None and max(r.restarts for r in after) == before + 1
            if after is None:
                return


def count(run_of: Command, workers: int, jobs: list[int]) -> tuple[int, int]:
    """(bad ones, restarts) over jobs of so many kills each; after a hang a fresh job goes on."""
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
        start = alone(launcher, args.workers, max_restarts=2 * args.restarts)
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
