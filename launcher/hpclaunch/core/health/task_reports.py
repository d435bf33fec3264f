"""The table of `hpclaunch doctor`, made from the findings of its tasks on all hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .findings import Finding, Grade

SAME_EVERYWHERE = ("hpclaunch", "torch")  # checks that should find the same on all hosts
SHOWN = 4  # different findings of one check; the rest is only counted
MAX_SKEW = 1.0  # seconds between two clocks


@dataclass(frozen=True, slots=True)
class TaskReport:
    host: str
    findings: tuple[Finding, ...]
    clock: float = 0.0  # the time on this host when the report was sent, in seconds since 1970


@dataclass(frozen=True, slots=True)
class Row:
    finding: Finding
    hosts: tuple[str, ...]


def rows(reports: Sequence[TaskReport]) -> list[Row]:
    """Return a row for each finding, with all hosts that have it. The checks are in the order of
    the first report.
    """
    checks: dict[str, dict[Finding, dict[str, None]]] = {}
    for report in reports:
        for finding in report.findings:
            checks.setdefault(finding.check, {}).setdefault(finding, {})[report.host] = None
    table = []
    for check, found in checks.items():
        table += _shortened(check, [Row(f, tuple(hosts)) for f, hosts in found.items()])
    return table


def _shortened(check: str, found: list[Row]) -> list[Row]:
    """Return the rows of one check, the worst first. Of each grade, return only a few: a check may
    find something different on each of a thousand hosts.
    """
    order = (Grade.FAIL, Grade.WARN, Grade.OK)
    found = sorted(found, key=lambda row: order.index(row.finding.grade))
    table: list[Row] = []
    for grade in order:
        of_grade = [row for row in found if row.finding.grade is grade]
        table += of_grade[:SHOWN]
        if rest := of_grade[SHOWN:]:
            hosts = tuple(dict.fromkeys(host for row in rest for host in row.hosts))
            advice = "see the rows above" if grade is not Grade.OK else ""
            table.append(Row(Finding(check, "similar", grade, advice), hosts))
    return table


def differences(reports: Sequence[TaskReport]) -> list[Finding]:
    """Return a finding for each check that differs between hosts and should not."""
    findings = []
    for check in SAME_EVERYWHERE:
        seen: dict[str, str] = {}  # finding -> the first host that has it
        for report in reports:
            for f in report.findings:
                if f.check == check and f.grade is Grade.OK:
                    seen.setdefault(f.found, report.host)
        if len(seen) > 1:
            examples = "; ".join(f"{host}: {found}" for found, host in list(seen.items())[:SHOWN])
            advice = "activate one environment that all nodes see, before srun"
            findings.append(Finding(check, f"differs: {examples}", Grade.WARN, advice))
    return findings


def clocks(skews: Sequence[tuple[str, float]]) -> Finding:
    """Judge the clocks. `skews` has, for each host, the seconds by which its clock was ahead of the
    first task's when its report arrived. A report takes far less than MAX_SKEW to arrive.
    """
    host, most = max(skews, key=lambda entry: abs(entry[1]))
    if abs(most) < MAX_SKEW:
        return Finding("clocks", f"within {max(abs(most), 0.001):.3f} s of the first host's")
    way = "ahead of" if most > 0 else "behind"
    return Finding(
        "clocks",
        f"the clock of {host} is {abs(most):.1f} s {way} the first host's",
        Grade.WARN,
        "repair its time service (chronyc tracking): the merged logs mislead, and a complete "
        "checkpoint may be passed over",
    )
