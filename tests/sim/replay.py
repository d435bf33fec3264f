# ruff: noqa: T201 -- a command that talks to its user
"""Show one simulated run (SEED), or look for broken laws in many (--seeds N)."""

from __future__ import annotations

import argparse
import re
import sys

from cluster_sim import check, replay
from seed_search import search
from sim_checker import BrokenLawError

_BEAT = re.compile(r"serial=\d+|age=[\d.]+|tail=''")
_NOISE = re.compile(
    r", (head_)?address='[^']*'|, tail=''|, trouble=None|, lost=False|, culprit=<[^>]*>"
)


def show(seed: int, everything: bool) -> int:
    sim, failure = replay(seed)
    print(f"seed {seed}: {sim.plan}\n")
    seen: set[str] = set()
    for line in sim.transcript:
        # A beat repeats what was said; once is enough to follow the story.
        key = _BEAT.sub("", line[12:])
        if everything or key not in seen or not any(word in key for word in ("Report(", "Order(")):
            print(_short(line))
        seen.add(key)
    print()
    if failure is None:
        codes = sorted({a.verdict.code for a in sim.agents if a.verdict is not None})
        print(f"settled after {sim.now:.1f} s, exit code {codes}")
        return 0
    print(f"BROKEN: {type(failure).__name__}: {failure}")
    return 1


def _short(line: str) -> str:
    line = re.sub(r"<(?:Phase|Goal)\.(\w+): '\w+'>", r"\1", line)
    return _NOISE.sub("", line)


def _broken(seed: int) -> str:
    """Return which law a seed breaks, and how; "" if all hold."""
    try:
        check(seed)
    except BrokenLawError as e:
        return str(e).splitlines()[0]
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("--all", action="store_true", help="show every beat")
    parser.add_argument("--seeds", type=int, metavar="N", help="run so many")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="from this one on")
    options = parser.parse_args()
    if options.seeds:
        return search(_broken, options.first, options.seeds)
    if options.seed is None:
        parser.error("say which SEED, or how many --seeds")
    return show(options.seed, options.all)


if __name__ == "__main__":
    sys.exit(main())
