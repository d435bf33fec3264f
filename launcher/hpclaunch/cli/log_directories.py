"""The log directories that a user names: JOB, DIR, or nothing for the newest launch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from hpclaunch.core.protocol.errors import UsageError

from .parser import Parser


def add_argument(parser: Parser) -> None:
    """Add the argument JOB, whose value `chosen` takes as `named`."""
    parser.add_argument(
        "job",
        nargs="?",
        metavar="JOB|DIR",
        help="a Slurm job's id, the name of a launch, or a log directory",
    )


def chosen(named: str | None, date: Callable[[Path], float]) -> list[Path]:
    """Return the directories of all launches of a Slurm job, or else a single one. `date` is as for
    `newest`. Raises UsageError.
    """
    from hpclaunch.system.logs import log_directory

    if named == "":  # from an unset variable of the shell
        raise UsageError("the name of the job is empty")
    above = log_directory.of_all_launches()
    if named is not None and os.path.isdir(named):
        return [newest(Path(named), date) or Path(named)]
    if named is not None:
        names = _names(above)
        ours = [name for name in names if named in (name, name.partition(".")[0])]
        found = [above / name for name in sorted(ours, key=_numbers)]
        is_id = named[:1].isdecimal()
        if not found and not is_id and not re.fullmatch(r"local-[^/]+", named):
            return [Path(named)]
        if not found:
            begun = "submitted" if is_id else "started"
            how = f"run this where the job was {begun}, or name its log directory"
            if re.fullmatch(r"\d+_\d+", named):  # it has the element's own id, as in SLURM_JOB_ID
                how += f"; an element of an array has its own id: sacct -X -j {named} -o JobIDRaw"
            raise UsageError(f"there is no log directory of job {named} in {above}: {how}")
        return found
    if (last := newest(above, date)) is None:
        how = "name a Slurm job or a log directory"
        raise UsageError(f"there is no launch in {above} here: {how}")
    return [last]


def newest(directory: Path, date: Callable[[Path], float]) -> Path | None:
    """Return the log directory itself, or else the newest one in it, as in hpclaunch-logs. `date`
    returns the time of the last change in a log directory, or 0 for one without a launch.
    """
    if date(directory):
        return directory
    below = [directory / name for name in _names(directory)]
    dated = [(at, each) for each in below if (at := date(each))]
    return max(dated)[1] if dated else None


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _numbers(name: str) -> list[int]:
    """Return a key that sorts launches of a job by number: 71.2, then 71.10."""
    return [int(number) for number in re.findall(r"[0-9]+", name)]
