"""How soon the command line answers: `hpclaunch --help` and `torchrun --help`, in turn.

    python bench/help_text.py [--runs 20]

What it takes is what every command pays before it does anything.
"""

import argparse

from measuring import BIN, HPCLAUNCH, TORCHRUN, median, timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    seen: dict[str, list[float]] = {HPCLAUNCH: [], TORCHRUN: []}
    for _ in range(runs):
        for launcher, seconds in seen.items():
            seconds.append(timed([str(BIN / launcher), "--help"]))
    ours, theirs = median(seen[HPCLAUNCH]), median(seen[TORCHRUN])
    print(
        f"--help, medians of {runs}: {HPCLAUNCH} {ours:.3f} s, {TORCHRUN} {theirs:.3f} s, "
        f"ratio {theirs / ours:.1f}"
    )


if __name__ == "__main__":
    main()
