"""Launch to the first all-reduce, SIGKILL of a worker to all ranks re-initialised, and the end.

    python bench/launch_and_restart.py [--workers 2 4 8] [--runs 5] [--cold] [--stages]

hpclaunch and torchrun in turn, on this machine, with `python -c "import torch"` between them: no
launch of a script that uses torch takes less than that. --cold adds hpclaunch --cold, which starts
every worker as a fresh interpreter; --stages tells where the time goes.
"""

import argparse
import sys

from measuring import COLD, HPCLAUNCH, TORCHRUN, alone, running, timed
from side_by_side import Launcher, compare


def launcher(name: str, workers: int) -> Launcher:
    return lambda: running([alone(name, workers)], workers)


def import_torch() -> float:
    return timed([sys.executable, "-c", "import torch"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--stages", action="store_true")
    args = parser.parse_args()
    names = [HPCLAUNCH, *([COLD] if args.cold else []), TORCHRUN]
    for workers in args.workers:
        launchers = {name: launcher(name, workers) for name in names}
        title = f"{workers} workers"
        compare(title, launchers, import_torch, runs=args.runs, stages=args.stages)


if __name__ == "__main__":
    main()
