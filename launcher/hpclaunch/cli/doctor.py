"""Check for anything that would prevent or slow down a training, and give advice.

    hpclaunch doctor              on this machine
    srun hpclaunch doctor         on all nodes of a job, in one table
    srun hpclaunch doctor --measure
                                  measure their GPUs, and the links between them

It changes nothing, except that in a step of several tasks it creates the secret
file if there is none yet.
The exit code is 1 if a training would break (FAIL), or if a GPU or a link that
was measured is slow; otherwise 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpclaunch.core.health.findings import Finding, Grade, failed
from hpclaunch.core.health.task_reports import Row, TaskReport, differences, rows
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import HEAD
from hpclaunch.core.protocol.wording import as_bytes, harmless
from hpclaunch.system.logs import log_directory

from . import rich_output, values, write_bytes

EXIT_FAIL = 1


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--measure",
        action="store_true",
        help="instead of these checks, measure how fast every GPU computes and copies memory, and "
        "how fast the links between GPUs are; name what is slow or computes wrong results",
    )
    parser.add_argument(
        "--timeout",
        type=values.seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for the other tasks, and for torch (default: %(default)g)",
    )
    parser.add_argument(
        "--log-dir",
        type=Path,
        metavar="DIR",
        help="the log directory that the launch will use (default: hpclaunch-logs)",
    )


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    if options.measure:
        if options.log_dir is not None:
            raise UsageError(
                "--log-dir has no effect with --measure, whose logs are temporary: omit one"
            )
        from . import doctor_measurement

        found, code = doctor_measurement.measure(environ, options.timeout)
        if found:
            _show(found)
        if code > 128:  # ended by a signal
            return code
        slow = any(row.finding.grade is not Grade.OK for row in found)
        return EXIT_FAIL if slow or code else 0
    return _check(options, environ)


def _check(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from . import doctor_host, doctor_reports

    here = doctor_host.surroundings(environ)
    where, shared = here.where, here.secret
    logs = options.log_dir or log_directory.of_all_launches()

    def examine() -> TaskReport:
        return TaskReport(here.host, tuple(doctor_host.examine(here, logs, options.timeout)))

    more: list[Finding] = []
    if shared is not None and where.index == HEAD:
        reports, more = doctor_reports.collect(where, shared, examine, options.timeout)
        more += differences(reports)
    else:
        reports = [examine()]
        if shared is not None:
            missed = doctor_reports.send(where, shared, reports[0], options.timeout)
            if missed is None:
                return 0  # the first task prints it, and has the exit code
            more = [missed]
    reports.append(TaskReport(here.host, tuple(more)))
    _show(rows(reports))
    return EXIT_FAIL if any(failed(report.findings) for report in reports) else 0


def _show(found: Sequence[Row]) -> None:
    """Write the table in one piece, since other tasks of the step may also write."""
    write_bytes([as_bytes(_table(found))])


def _table(found: Sequence[Row]) -> str:
    from rich.table import Table
    from rich.text import Text

    from .doctor_reports import folded

    styles = {Grade.OK: "green", Grade.WARN: "yellow", Grade.FAIL: "bold red"}
    hosts = dict.fromkeys(host for row in found for host in row.hosts)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    if len(hosts) > 1:
        table.add_column(max_width=24, overflow="fold")
    table.add_column(overflow="fold")
    for row in found:
        finding = row.finding
        words = Text(harmless(finding.found))
        if finding.advice:
            words.append(f"\n-> {harmless(finding.advice)}", style="italic")
        cells = [Text(finding.grade.value, style=styles[finding.grade])]
        cells.append(Text(harmless(finding.check)))
        if len(hosts) > 1:
            who = "all" if len(row.hosts) == len(hosts) else harmless(folded(row.hosts))
            cells.append(Text(who))
        table.add_row(*cells, words)
    title = Text(f"hpclaunch doctor on {harmless(folded(hosts))}", style="bold")
    return rich_output.as_text([title, table, _summary(found)])


def _summary(found: Sequence[Row]) -> str:
    count = {g: sum(row.finding.grade is g for row in found) for g in Grade}
    if count[Grade.FAIL]:
        return f"{count[Grade.FAIL]} FAIL: a training would break here"
    if count[Grade.WARN]:
        return f"{count[Grade.WARN]} warn: a training can run, and may suffer"
    return "nothing is in the way of a training"
