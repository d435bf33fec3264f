# ruff: noqa: T201 -- a command that talks to its user
"""Show one simulated run with checkpoints in memory (SEED), or look for broken laws in many."""

from __future__ import annotations

import argparse
import sys

from seed_search import search
from sim_checker import BrokenLawError
from staging_cluster import Cluster, draw


def broken(seed: int) -> str:
    """Return which law a seed breaks; "" if all hold."""
    try:
        Cluster(draw(seed)).run()
    except BrokenLawError as e:
        return str(e)
    return ""


def check(seed: int) -> None:
    if law := broken(seed):
        raise BrokenLawError(f"seed {seed}: {law}\n    python tests/sim/staging_replay.py {seed}")


def show(seed: int) -> int:
    cluster = Cluster(draw(seed))
    print(f"seed {seed}: {cluster.plan}\n")
    try:
        cluster.run()
    except BrokenLawError as e:
        print("\n".join(cluster.world.transcript))
        print(f"BROKEN at {cluster.world.now:.3f}: {e}")
        return 1
    print("\n".join(cluster.world.transcript))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("--seeds", type=int, metavar="N", help="run so many")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="from this one on")
    options = parser.parse_args()
    if options.seeds:
        return search(broken, options.first, options.seeds)
    if options.seed is None:
        parser.error("say which SEED, or how many --seeds")
    return show(options.seed)


if __name__ == "__main__":
    sys.exit(main())
