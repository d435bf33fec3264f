"""The ledgers and pasts of the launches in a log directory, from the facts of their agents."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpclaunch.observe.head_facts import DatedFact
    from hpclaunch.observe.launch_past import LaunchPast
    from hpclaunch.observe.launches import Launch


def read(directory: Path) -> tuple[list[Launch], list[str]]:
    """Return the launches in the order of time, and the names of files that are damaged or of
    another version. Raises OSError.
    """
    from hpclaunch.observe.ledger import ledger_of

    runs, unknown = _by_launch(directory)
    found = (ledger_of(of).launch(name) for name, of in runs.items())
    return sorted(filter(None, found), key=lambda launch: launch.begin), unknown


def pasts(directory: Path) -> dict[str, LaunchPast]:
    """Return the pasts of the launches, by their names. Raises OSError."""
    from hpclaunch.observe.head_facts import facts_of_heads
    from hpclaunch.observe.launch_past import past_of

    return {name: past_of(facts_of_heads(of)) for name, of in _by_launch(directory)[0].items()}


def _by_launch(directory: Path) -> tuple[dict[str, list[list[DatedFact]]], list[str]]:
    from hpclaunch.system.logs import fact_files

    found = defaultdict[str, list[list["DatedFact"]]](list)
    runs, unknown = fact_files.read(directory)
    for run in runs:
        found[run.launch].append(run.facts)
    return found, unknown


def state(directory: Path) -> tuple[tuple[str, int, int], ...]:
    """Return the name, size and time of each file with facts, which change with every fact."""
    from hpclaunch.system.logs import fact_files

    try:
        found = [(file.name, os.lstat(file)) for file in fact_files.in_directory(directory)]
    except OSError:
        return ()
    return tuple((name, seen.st_size, seen.st_mtime_ns) for name, seen in found)


def date(directory: Path) -> float:
    """Return when the last fact was recorded in a directory, or 0 if there is none."""
    return max((at for _, _, at in state(directory)), default=0) / 1e9
