"""The ledgers of the launches in a log directory, made of the facts of their agents."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpclaunch.core.ledger.summing import Launch
    from hpclaunch.system.logs.fact_files import AgentFacts


def read(directory: Path) -> tuple[list[Launch], list[str]]:
    """Return the launches in the order of time, and the names of files that are damaged or of
    another version. Raises OSError.
    """
    from hpclaunch.observe.ledger import ledger_of
    from hpclaunch.system.logs import fact_files

    runs, unknown = fact_files.read(directory)
    by_name: dict[str, list[AgentFacts]] = defaultdict(list)
    for run in runs:
        by_name[run.launch].append(run)
    found = (ledger_of(run.facts for run in of).launch(name) for name, of in by_name.items())
    return sorted(filter(None, found), key=lambda launch: launch.begin), unknown


def state(directory: Path) -> tuple[tuple[str, int, int], ...]:
    """Return the name, the size and the time of each file with facts. Another fact changes it."""
    from hpclaunch.system.logs import fact_files

    try:
        found = [(file.name, os.lstat(file)) for file in fact_files.in_directory(directory)]
    except OSError:
        return ()
    return tuple((name, seen.st_size, seen.st_mtime_ns) for name, seen in found)


def date(directory: Path) -> float:
    """Return when a fact was recorded in it last; 0 if there is none."""
    return max((at for _, _, at in state(directory)), default=0) / 1e9
