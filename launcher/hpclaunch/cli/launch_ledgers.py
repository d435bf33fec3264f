"""The ledgers and pasts of the launches in a log directory, from the facts of their agents."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpclaunch.observe.head_facts import DatedFact
    from hpclaunch.observe.launch_past import LaunchPast
    from hpclaunch.observe.launches import Launch

    Runs = dict[str, list[list[DatedFact]]]


def read(directory: Path) -> tuple[list[Launch], list[str]]:
    """Return the launches in the order of time, and the names of files that are damaged or of
    another version. Raises OSError.
    """
    runs, unknown = facts(directory)
    return sorted(launches(runs), key=lambda launch: launch.begin), unknown


def facts(directory: Path) -> tuple[Runs, list[str]]:
    """Return the facts of the runs of each launch, by its name, and the names of files that are
    damaged or of another version. Raises OSError.
    """
    from hpclaunch.system.logs import fact_files

    found: Runs = defaultdict(list)
    runs, unknown = fact_files.read(directory)
    for run in runs:
        found[run.launch].append(run.facts)
    return found, unknown


def launches(runs: Runs) -> list[Launch]:
    """Return the launches that have a ledger."""
    from hpclaunch.observe.ledger import ledger_of

    return [found for name, of in runs.items() if (found := ledger_of(of).launch(name))]


def past(runs: list[list[DatedFact]]) -> LaunchPast:
    """Return the past of one launch."""
    from hpclaunch.observe.head_facts import facts_of_heads
    from hpclaunch.observe.launch_past import past_of

    return past_of(facts_of_heads(runs))


def state(directory: Path) -> tuple[tuple[str, int, int], ...]:
    """Return the name, size and time of each file with facts, which change with every fact."""
    from hpclaunch.system.logs import fact_files

    found = []
    with contextlib.suppress(OSError):
        for file in fact_files.in_directory(directory):
            with contextlib.suppress(OSError):  # it was removed just now
                seen = os.lstat(file)
                found.append((file.name, seen.st_size, seen.st_mtime_ns))
    return tuple(found)


def date(directory: Path) -> float:
    """Return when the last fact was recorded in a directory, or 0 if there is none."""
    return max((at for _, _, at in state(directory)), default=0) / 1e9
