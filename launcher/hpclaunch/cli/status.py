"""Show what running jobs do, without disturbing them.

    hpclaunch status             your jobs, in Slurm and on this machine
    hpclaunch status 71          one of them: its progress, nodes or ranks
    hpclaunch status 71 --watch  the same, updated until it ends
    hpclaunch status 71 --json   all that is known of it

A job that is over is shown as it was at its end, from its log directory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.job_snapshot import LaunchSnapshot
from hpclaunch.core.protocol.stages import Stage
from hpclaunch.core.protocol.values import replace
from hpclaunch.core.protocol.wording import harmless_json
from hpclaunch.observe.job_screen import job_line, job_list, job_screen
from hpclaunch.observe.text_style import TextStyle

from . import launch_ledgers, log_directories, say, write
from .parser import Parser

if TYPE_CHECKING:
    from hpclaunch.system.network import launches

PAUSE, PAUSE_IN_FILE = 1.0, 10.0  # seconds between two snapshots
WIDTH_IN_FILE = 200
HOME, CLEAR_LINE, CLEAR = "\x1b[H", "\x1b[K", "\x1b[0J"


def prepare_parser(parser: Parser) -> None:
    parser.add_argument(
        "job",
        nargs="?",
        metavar="JOB",
        help="Slurm's id of a job, the name of a launch, or a log directory",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print all that is known, as JSON")
    how.add_argument("--watch", action="store_true", help="update it until the job ends")


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from hpclaunch.system.network import launches

    try:
        if options.watch:
            return watch(options.job, environ)
        if options.job is not None:
            found = launches.LaunchList([_one(options.job, environ)])
        else:
            found = launches.all_launches(environ)
    except launches.NoLaunchError as e:
        raise UsageError(str(e)) from e
    why = found.complaint
    if options.json:
        from hpclaunch.system.shared import packing

        write(harmless_json(packing.to_json(found.launches).decode()) + "\n")
    elif found.launches or found.others:
        show_screen(found.launches, environ, found.others)
    else:
        where = "here, and the jobs in Slurm are not known" if why else "here, or in Slurm"
        raise UsageError(f"no job of yours runs {where}{f': {why}' if why else ''}")
    if why:
        say(f"the jobs in Slurm are not known: {why}")
    return 0


def running_or_ended(
    job: str, environ: Mapping[str, str]
) -> launches.FoundLaunches | LaunchSnapshot:
    """Return the running launches of a job, or the one of a log directory; once it is over, its
    last snapshot. Raises NoLaunchError.
    """
    from hpclaunch.system.logs import status_file
    from hpclaunch.system.network import launches

    try:
        return launches.find(job, environ)
    except launches.NoLaunchError:
        job = _logs(job)
        logged = status_file.newest(job)
        names = _names_in(Path(job)) or ([] if logged is None else [logged.name])
        # In its first minute, a launch has not written a snapshot: this may be an earlier launch's.
        if logged is not None and _is_over(logged) and logged.name == names[-1]:
            return logged
        if not names or not os.path.isdir(job):
            raise
    return launches.find(names[-1], environ)


def _logs(job: str) -> str:
    """Return the newest log directory in one such as hpclaunch-logs; `job` if it is none."""
    found = log_directories.newest(Path(job), launch_ledgers.date) if os.path.isdir(job) else None
    return job if found is None else str(found)


def _names_in(directory: Path) -> list[str]:
    """Return the names of the launches in a log directory, in the order of time."""
    try:
        found, _ = launch_ledgers.read(directory)
    except OSError:
        return []
    return [launch.name for launch in found]


def _one(job: str, environ: Mapping[str, str]) -> LaunchSnapshot:
    """Return the newest snapshot of a job, from its head, or else from its log directory: then say
    why, unless the job is over.
    """
    from hpclaunch.system.logs import status_file
    from hpclaunch.system.network import launches

    try:
        found = running_or_ended(job, environ)
    except launches.NoLaunchError as e:
        if (last := status_file.newest(_logs(job))) is None:
            raise
        say(str(e))
        return last
    return found if isinstance(found, LaunchSnapshot) else found.only


def _is_over(launch: LaunchSnapshot) -> bool:
    return launch.job is not None and launch.job.stage is Stage.ENDED


def style(environ: Mapping[str, str]) -> TextStyle:
    """Return the style that fits standard output."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    to_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if to_terminal else WIDTH_IN_FILE
    colour = draws(environ) and not environ.get("NO_COLOR")
    return TextStyle(width, colour=colour, unicode=encoding.startswith("utf"))


def show_screen(
    launches: Sequence[LaunchSnapshot],
    environ: Mapping[str, str],
    others: Sequence[tuple[str, str]] = (),
) -> None:
    """Print the screen of a launch, or a list of several. `others` are jobs without an answer."""
    write(_text(_shown(launches, others, style(environ))))


def _shown(
    launches: Sequence[LaunchSnapshot], others: Sequence[tuple[str, str]], paper: TextStyle
) -> list[str]:
    if len(launches) == 1 and not others:
        return job_screen(launches[0], paper)
    return job_list(launches, others, paper)


def watch(job: str | None, environ: Mapping[str, str]) -> int:
    """Show a job until it is over: on a terminal as a screen, in a file as a line now and then. At
    the end, also if it is over already, show how it ended if its log directory can be read here.
    """
    from hpclaunch.system.network import launches

    if job is None:
        raise UsageError("which job? hpclaunch status lists them")
    drawn = draws(environ)

    def show(seen: Sequence[LaunchSnapshot]) -> None:
        _draw(seen, environ) if drawn else write(_text(map(job_line, seen)))

    found = running_or_ended(job, environ)
    if isinstance(found, LaunchSnapshot):
        show([found])
        return 0
    last, which = found.launches, found.which
    while True:
        with found.watch(PAUSE if drawn else PAUSE_IN_FILE) as stream:
            while not stream.over:
                for last in stream.receive():
                    show(last)
        while True:  # perhaps another agent leads now
            time.sleep(PAUSE)
            try:
                found = launches.find(which, environ)
                last = found.launches
                break
            except launches.UnreachableError:
                if drawn:
                    show([*map(aged, last)])
            except launches.NoLaunchError:
                show(at_end(last))
                return 0


def aged(launch: LaunchSnapshot) -> LaunchSnapshot:
    """Return a snapshot with its age, since the head of its launch does not answer now."""
    return replace(launch, old=max(0.0, time.time() - launch.time))


def at_end(seen: Iterable[LaunchSnapshot]) -> list[LaunchSnapshot]:
    """Return how launches ended, from their log directories if these can be read."""
    from hpclaunch.system.logs import status_file

    return [status_file.newest(launch.logs) or aged(launch) for launch in seen]


def draws(environ: Mapping[str, str]) -> bool:
    """Return whether standard output is a terminal with a cursor that can be moved."""
    to_terminal = sys.stdout is not None and sys.stdout.isatty()
    return to_terminal and environ.get("TERM") != "dumb"


def _draw(seen: Sequence[LaunchSnapshot], environ: Mapping[str, str]) -> None:
    height = shutil.get_terminal_size().lines
    lines = _shown(seen, (), style(environ))[: height - 1]
    # Clear a line before writing it: after one of full width, the cursor may be on its last column.
    write(HOME + "".join(f"{CLEAR_LINE}{line}\n" for line in lines) + CLEAR)


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
