"""The report of a job as text, in 80 columns and on less than a screen."""

from __future__ import annotations

import textwrap

from ..core.protocol.facts import Category
from ..core.protocol.wording import count, plain, signal_name, some
from .job_report import EndReport, JobOutcome, JobReport
from .text_style import MOMENT, LocalTime, seat_time, share

WIDTH = 80
MOST_ENDS = 3  # shown ends of rounds; others are counted
MOST_EVIDENCE = 2  # shown frames of a stack
NODES = 4  # shown names
LONG = 20 * 3600  # seconds of a job after which times are shown with their day
BAR = 22  # characters of a full bar


def text(report: JobReport, logs: str, local: LocalTime) -> list[str]:
    """Return the lines. Only `logs` may contain control characters."""
    return [
        *_head(report, local),
        "",
        *_seconds(report),
        *_ends(report, local),
        "",
        f"logs: {logs}",
    ]


def _head(report: JobReport, local: LocalTime) -> list[str]:
    names = some(report.launches, 3)
    nodes = f" on {some(report.nodes, NODES)}" if report.nodes else ""
    seats = count(round(report.seats), report.seat)
    when = f"{local(report.begin, MOMENT)} to {local(report.end, MOMENT)}"
    lasted = seat_time(report.end - report.begin)
    lines = [f"{names}{nodes}: {seats}", f"{when}, {lasted}"]
    rounds = f"{count(report.rounds, 'round')}"
    outcome = report.outcome
    if outcome is None:
        lines.append(f"not over, as far as is known here; {rounds}")
        return [plain(line) for line in lines]
    code = f"exit code {report.code}, {count(report.restarts, 'restart')}"
    how = "FAILED" if outcome is JobOutcome.FAILED else outcome.value
    how += "" if outcome is JobOutcome.DONE else f" ({report.cause})"
    lines.append(f"{how}: {code}, {rounds}")
    if report.code:
        lines += textwrap.wrap(plain(report.reason), WIDTH - 2)[:3]
    return [plain(line) for line in lines]


def _seconds(report: JobReport) -> list[str]:
    lines = [f"goodput {share(report.goodput)}", ""]
    if not report.steps_seen and (report.over or report.ends):  # facts lag while the job runs
        lines[0] += " (no optimizer steps were seen: all after the rendezvous counts)"
    unit, name = (3600.0, "hours") if report.total >= 3600 else (1.0, "seconds")
    name = f"{report.seat} {name}"
    for category in Category:
        seconds = report.seconds.get(category.value, 0.0)
        part = seconds / report.total if report.total else 0.0
        if part >= 0.0005:
            bar = "#" * round(BAR * part)
            line = f"  {category.value:18} {seconds / unit:10.2f} {share(part):>8}  {bar}"
            lines.append(line.rstrip())
    lines.append(f"  {'in all':18} {report.total / unit:10.2f} {name}")
    return lines


def _ends(report: JobReport, local: LocalTime) -> list[str]:
    if not report.ends:
        return []
    lines = ["", "rounds that ended early, and why:"]
    shown = report.ends[:1] + report.ends[max(1, len(report.ends) - MOST_ENDS + 1) :]
    form = "%b %d %H:%M:%S" if report.end - report.begin > LONG else "%H:%M:%S"
    for end in shown:
        lines += _end(end, local(end.at, form))
    if more := len(report.ends) - len(shown) + report.ends_left_out:
        kept = f"--json has {len(report.ends)} of all" if report.ends_left_out else "see --json"
        lines.append(f"  and {more} more: {kept}")
    return lines


def _end(end: EndReport, at: str) -> list[str]:
    seen = f"; seen after {seat_time(end.seen - end.at)}" if end.seen - end.at >= 1 else ""
    lines = [f"  {at} round {end.round}: {why(end)}{seen}"]
    if end.text:
        lines.append(f"    {end.text}")
    lines += [f"    at {frame}" for frame in end.evidence[:MOST_EVIDENCE]]
    if named := [each for each in end.consequences if each]:
        lines.append(f"    as a consequence: {some(named, 4)}")
    return [_cut(plain(line)) for line in lines]


def why(end: EndReport) -> str:
    """Return why a round ended, in a few words."""
    how = f", {signal_name(end.signal)}" if end.signal else ""
    how = f", exit code {end.code}" if end.code and not end.signal else how
    return f"{end.cause}, {end.who}{how}" if end.who else end.cause


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."
