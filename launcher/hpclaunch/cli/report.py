"""Show what a job did, what failed, and where every GPU's time went.

    hpclaunch report              the newest launch of this directory
    hpclaunch report 4711         all launches of a Slurm job
    hpclaunch report 4711.0       one of them
    hpclaunch report DIR          a log directory
    hpclaunch report --html FILE  a page for a browser, with charts over time

It reads only files in the log directory, while the job runs and after its end.
Where there are no GPUs, each worker counts as one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.wording import harmless, harmless_json

from . import launch_ledgers, log_directories, say, write
from .parser import Parser


def prepare_parser(parser: Parser) -> None:
    log_directories.add_argument(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print JSON, for other programs")
    how.add_argument("--html", metavar="FILE", help="write a page that needs no other file")


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    from hpclaunch.observe.job_report import report
    from hpclaunch.observe.job_report_text import text
    from hpclaunch.system.shared import packing

    directories = log_directories.chosen(options.job, launch_ledgers.date)
    runs = _runs(directories)
    found = [launch for each in runs for launch in launch_ledgers.launches(each)]
    if not found:
        where = ", ".join(map(str, directories))
        raise UsageError(f"there is nothing of a launch in {where}")
    launches = sorted(found, key=lambda launch: launch.begin)
    made = report(launches)
    if options.json:
        write(harmless_json(packing.to_json(made).decode()) + "\n")
    elif options.html is not None:
        from . import report_page

        report_page.write_file(options.html, made, launches, runs, directories)
    else:
        logs = str(directories[-1])
        write("\n".join(map(harmless, text(made, logs, local_time))) + "\n")
    return 0


def local_time(at: float, form: str) -> str:
    return time.strftime(form, time.localtime(at))


def _runs(directories: list[Path]) -> list[launch_ledgers.Runs]:
    """Return the facts in each directory. Raises UsageError."""
    found, unknown = [], list[str]()
    for directory in directories:
        try:
            runs, others = launch_ledgers.facts(directory)
        except OSError as e:
            raise UsageError(f"cannot read {directory}: {e.strerror or e}") from e
        found.append(runs)
        unknown += [str(directory / other) for other in others]
    for file in unknown:
        say(f"ignored: {file} is damaged, of another version or another user's")
    return found
