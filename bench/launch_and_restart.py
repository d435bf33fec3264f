"""Time a launch to the first all-reduce, a restart after SIGKILL of a worker, and the end of a job.

    python bench/launch_and_restart.py [--workers 2 4 8] [--runs 5] [--cold] [--stages]

hpclaunch and torchrun run in turn on this machine, and between them `python -c "import torch"`: no
launch of a script that uses torch is faster than that. --cold adds hpclaunch --cold, which starts
every worker as a new interpreter; --stages shows the time of each stage.
"""

import argparse

from measuring import COLD, HPCLAUNCH, TORCHRUN, import_torch, running, standalone
from side_by_side import Launcher, compare


def launcher(name: str, workers: int) -> Launcher:
    return lambda: running([standalone(name, workers)], workers)


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
