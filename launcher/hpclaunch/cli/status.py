"""Show what running jobs do, without disturbing them.

hpclaunch status             your jobs, those of Slurm and those on this machine
hpclaunch status 71          one of them: how far it is, and its nodes or ranks
hpclaunch status 71 --watch  the same, again and again, until it ends
hpclaunch status 71 --json   all that is known of it
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.job_snapshot import LaunchSnapshot
from hpclaunch.core.protocol.stages import Stage
from hpclaunch.core.protocol.wording import harmless_json
from hpclaunch.observe.job_list import job_line, job_list
from hpclaunch.observe.job_screen import job_screen
from hpclaunch.observe.text_style import TextStyle

from . import say, write
from .parser import Parser

PAUSE, PAUSE_IN_FILE = 1.0, 10.0  # seconds between two looks
WIDTH_IN_FILE = 200
HOME, CLEAR_LINE, CLEAR = "\x1b[H", "\x1b[K", "\x1b[0J"


def prepare_parser(parser: Parser) -> None:
    parser.add_argument(
        "job", nargs="?", metavar="JOB", help="Slurm's id of a job, or the name of a launch"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="a list of all that is known, as JSON")
    how.add_argument("--watch", action="store_true", help="again and again, until it ends")


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from hpclaunch.system.network import launches

    try:
        if options.watch:
            return watch(options.job, environ)
        if options.job is not None:
            told = launches.Told([_one(options.job, environ)])
        else:
            told = launches.all_launches(environ)
    except launches.NoLaunchError as e:
        raise UsageError(str(e)) from e
    why = told.complaint
    if options.json:
        from hpclaunch.system.shared import packing

        write(harmless_json(packing.to_json(told.launches).decode()) + "\n")
    elif told.launches or told.others:
        write(_text(_shown(told.launches, told.others, style(environ))))
    else:
        where = "here, and the jobs in Slurm are not known" if why else "here, or in Slurm"
        raise UsageError(f"no job of yours runs {where}{f': {why}' if why else ''}")
    if why:
        say(f"the jobs in Slurm are not known: {why}")
    return 0


def _one(job: str, environ: Mapping[str, str]) -> LaunchSnapshot:
    """As it is, or if nobody can be asked, as it was."""
    from hpclaunch.system.logs import status_file
    from hpclaunch.system.network import launches

    try:
        found = launches.find(job, environ)
    except launches.NoLaunchError:
        if (last := status_file.newest(job)) is None:
            raise
        is_over = last.job is not None and last.job.stage is Stage.ENDED
        if is_over or not os.path.isdir(job):
            return last
        with contextlib.suppress(launches.NoLaunchError):  # of whose log directory it is
            return launches.find(last.name, environ).only
        return last
    return found.only


def style(environ: Mapping[str, str]) -> TextStyle:
    """As standard output wants it."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    to_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if to_terminal else WIDTH_IN_FILE
    colour = to_terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    return TextStyle(width, colour=colour, unicode=encoding.startswith("utf"))


def _shown(
    launches: Sequence[LaunchSnapshot], others: Sequence[tuple[str, str]], paper: TextStyle
) -> list[str]:
    if len(launches) == 1 and not others:
        return job_screen(launches[0], paper)
    return job_list(launches, others, paper)


def watch(job: str | None, environ: Mapping[str, str]) -> int:
    """A screen that is drawn anew, or in a file a line now and then, until the job is over. What
    is shown last is how it has ended, where its log directory can be seen.
    """
    from hpclaunch.system.logs import status_file
    from hpclaunch.system.network import launches

    if job is None:
        raise UsageError("which job? hpclaunch status lists them")
    found = launches.find(job, environ)
    drawn = draws(environ)

    def show(seen: Sequence[LaunchSnapshot]) -> None:
        _draw(seen, environ) if drawn else write(_text(map(job_line, seen)))

    while True:
        with found.watch(PAUSE if drawn else PAUSE_IN_FILE) as stream:
            while not stream.over:
                for seen in stream.receive():
                    show(seen)
        try:  # another agent may lead by now
            found = launches.find(job, environ)
        except launches.NoLaunchError:
            ended = map(status_file.newest, (launch.logs for launch in found.launches))
            show([last for last in ended if last is not None])
            return 0


def draws(environ: Mapping[str, str]) -> bool:
    """Whether standard output is a terminal on which the cursor can be moved."""
    to_terminal = sys.stdout is not None and sys.stdout.isatty()
    return to_terminal and environ.get("TERM") != "dumb"


def _draw(seen: Sequence[LaunchSnapshot], environ: Mapping[str, str]) -> None:
    height = shutil.get_terminal_size().lines  # some terminals have none, by what they tell
    lines = _shown(seen, (), style(environ))[: height - 1]
    # Cleared before: after a line of the full width, the cursor may still be on its last character.
    write(HOME + "".join(f"{CLEAR_LINE}{line}\n" for line in lines) + CLEAR)


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
