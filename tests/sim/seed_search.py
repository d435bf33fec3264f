# ruff: noqa: T201 -- part of commands that talk to their user
"""The search for broken laws in many simulated runs."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import Pool

CHUNK = 50  # seeds that a process runs before it reports


def search(broken: Callable[[int], str], first: int, count: int) -> int:
    """Print the laws that some of `count` seeds break. Return the exit code: 1 if there are any.

    `broken`, a function of a module, returns which law a seed breaks, and how; "" if all hold.
    """
    began, found = time.monotonic(), Counter[str]()
    examples: dict[str, int] = {}
    seeds = range(first, first + count)
    with Pool() as processes:
        for seed, text in zip(seeds, processes.imap(broken, seeds, chunksize=CHUNK), strict=True):
            if not text:
                continue
            what = re.sub(r"\d+(\.\d+)?", "#", text)[:110]
            found[what] += 1
            if examples.setdefault(what, seed) == seed:
                print(f"seed {seed}: {text[:400]}", flush=True)
    spent = time.monotonic() - began
    print(f"{count} seeds in {spent:.0f} s, {found.total()} broken")
    for what, times in found.most_common():
        print(f"{times:7}  {what}  (first: {examples[what]})")
    return 1 if found else 0
