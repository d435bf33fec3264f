"""Launch to the first all-reduce, and SIGKILL of a worker to all ranks re-initialised.

    python bench/launch_and_restart.py [--workers 2 4 8] [--runs 5]

hpclaunch and torchrun in turn, on this machine; medians in seconds, and torchrun / hpclaunch.
"""

import argparse

from measuring import HPCLAUNCH, TORCHRUN, median, running


def once(launcher: str, workers: int) -> tuple[float | None, float | None]:
    """(seconds to launch, seconds to restart); None for a hang."""
    with running(launcher, workers) as run:
        launched = run.met(run.began)
        if launched is None:
            return None, None
        return launched, run.met(run.kill_worker())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    print(f"{'':10}{'workers':>8}{'hpclaunch':>11}{'torchrun':>10}{'ratio':>7}   hung (h, t)")
    for workers in args.workers:
        figures = {HPCLAUNCH: [], TORCHRUN: []}
        for _ in range(args.runs):
            for launcher, seen in figures.items():
                seen.append(once(launcher, workers))
        for column, what in enumerate(("launch", "restart")):
            ours, theirs = ([f[column] for f in figures[name]] for name in (HPCLAUNCH, TORCHRUN))
            h, t = median(ours), median(theirs)
            hung = f"{ours.count(None)}, {theirs.count(None)} of {args.runs}"
            print(f"{what:10}{workers:8}{h:10.2f}s{t:9.2f}s{t / h:7.2f}   {hung}", flush=True)


if __name__ == "__main__":
    main()
