"""Time `hpclaunch --help` and `torchrun --help`, in turn.

    python bench/help_text.py [--runs 20]

Every command takes this time before it does anything.
"""

import argparse

from measuring import BIN, HPCLAUNCH, TORCHRUN, median, timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    times: dict[str, list[float]] = {HPCLAUNCH: [], TORCHRUN: []}
    for _ in range(runs):
        for launcher, seconds in times.items():
            seconds.append(timed([str(BIN / launcher), "--help"]))
    ours, theirs = median(times[HPCLAUNCH]), median(times[TORCHRUN])
    print(
        f"--help, medians of {runs}: {HPCLAUNCH} {ours:.3f} s, {TORCHRUN} {theirs:.3f} s, "
        f"ratio {theirs / ours:.1f}"
    )


if __name__ == "__main__":
    main()
