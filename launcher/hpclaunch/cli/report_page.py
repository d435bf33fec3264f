"""`hpclaunch report --html FILE`: fills in the template of the page.

A page loads nothing and runs no script but its own: output of workers is always escaped.
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hpclaunch import __version__
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.observe.job_page import JobPage, job_page
from hpclaunch.observe.job_report import JobReport
from hpclaunch.observe.launches import Launch, round_ends
from hpclaunch.system.logs import history_files, stack_files

from . import launch_ledgers
from .report import local_time

if TYPE_CHECKING:
    from hpclaunch.core.hangs.tracebacks import HangStacks
    from hpclaunch.core.member.moments import AgentHistory

PAGE = "report.html"
SCRIPTS = ("echarts/echarts.min.js", "report.js")
TEMPLATES = "page"


def write_file(
    file: str,
    report: JobReport,
    launches: Sequence[Launch],
    runs: Iterable[launch_ledgers.Runs],
    directories: Sequence[Path],
) -> None:
    """Write the page. `runs` are the facts in each directory. Raises UsageError."""
    histories: list[AgentHistory] = []
    stacks: list[HangStacks] = []
    names = {launch.name for launch in launches}
    pasts = {n: launch_ledgers.past(of) for each in runs for n, of in each.items() if n in names}
    faulty = [(end.round, end.failures[0].rank) for end in round_ends(launches) if end.failures]
    for directory in directories:
        try:
            histories += [h for h in history_files.read(directory) if h.launch in names]
            stacks += stack_files.read(directory, faulty)
        except OSError as e:
            raise UsageError(f"cannot read {directory}: {e.strerror or e}") from e
    logs = [str(directory) for directory in directories]
    seen = (pasts, histories, stacks)
    page = job_page(report, launches, *seen, local_time, logs=logs, version=__version__)
    data = html(page).encode(errors="replace")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with open(os.open(file, flags, 0o600), "wb") as f:  # a new one is as private as the logs
            f.write(data)
    except OSError as e:
        raise UsageError(f"cannot write {file}: {e.strerror or e}") from e


def html(page: JobPage) -> str:
    # slow to import, and needed only here
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__package__, TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["checksum"] = _checksum
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    data = {
        "begin": page.begin,
        "end": page.end,
        "offset": time.localtime(page.begin).tm_gmtoff,  # of the local time from UTC, in seconds
        **msgspec.to_builtins(page.time_line),
        "charts": [msgspec.to_builtins(chart) for chart in (*page.charts, *page.gpu_charts)],
        "ledger": [msgspec.to_builtins(row) for row in page.ledger],
    }
    # The style and the scripts are written as they are: the page's policy names their checksums.
    scripts = [_source(name) for name in SCRIPTS]
    return environment.get_template(PAGE).render(
        page=page, data=data, style=_source("report.css"), scripts=scripts
    )


def _source(name: str) -> str:
    return files(__package__).joinpath(TEMPLATES, name).read_text()


def _checksum(text: str) -> str:
    """Return the checksum as a Content-Security-Policy writes it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
