"""SIGKILL of a worker again and again: does every restart come through, with one restart used?

    python bench/restarts_never_hang.py [--runs 20] [--workers 2]

For hpclaunch, then for torchrun as shipped (its store shared between rounds) for comparison.
"""

import argparse

from measuring import HPCLAUNCH, TORCHRUN, running


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", choices=[HPCLAUNCH, TORCHRUN])
    args = parser.parse_args()
    for launcher in [args.only] if args.only else [HPCLAUNCH, TORCHRUN]:
        came, single = 0, 0
        for _ in range(args.runs):
            with running(launcher, args.workers, max_restarts=10, as_shipped=True) as run:
                if run.met(run.began) is None:
                    continue
                if run.met(run.kill_worker()) is not None:
                    came += 1
                    single += run.restarts() == 1
        print(f"{launcher}: {came} of {args.runs} came through, {single} with one restart")


if __name__ == "__main__":
    main()
