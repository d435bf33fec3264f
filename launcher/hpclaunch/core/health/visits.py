"""One table from what `hpclaunch doctor` has found on many hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .findings import Finding, Grade

SAME_EVERYWHERE = ("hpclaunch", "torch")  # checks that should find the same on all hosts
SHOWN = 4  # how many different findings of one check are shown; the rest is only counted
MAX_SKEW = 1.0  # seconds between two clocks


@dataclass(frozen=True, slots=True)
class Visit:
    """An agent of the step to the head: what it has found, and the time on its clock."""

    host: str
    findings: tuple[Finding, ...]
    clock: float = 0.0  # seconds since 1970
    echo: float = 0.0  # `at` of the Call that this answers


@dataclass(frozen=True, slots=True)
class Call:
    """The head to an agent: send the time on your clock, or leave."""

    at: float  # when this was sent
    code: int | None = None  # the exit code to leave with; None: do not leave


@dataclass(frozen=True, slots=True)
class Row:
    finding: Finding
    hosts: tuple[str, ...]


def rows(visits: Sequence[Visit]) -> list[Row]:
    """Return a row for each finding, with all hosts that have it. The checks are in the order of
    the first host.
    """
    checks = dict.fromkeys(f.check for visit in visits for f in visit.findings)
    table = []
    for check in checks:
        hosts: dict[Finding, dict[str, None]] = {}
        for visit in visits:
            for finding in visit.findings:
                if finding.check == check:
                    hosts.setdefault(finding, {})[visit.host] = None
        table += _shortened(check, [Row(f, tuple(h)) for f, h in hosts.items()])
    return table


def _shortened(check: str, found: list[Row]) -> list[Row]:
    """Sort the rows of one check, the worst first. If there are many of one grade, show only a few:
    a check may find something different on each of a thousand hosts.
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


def differences(visits: Sequence[Visit]) -> list[Finding]:
    """Return a finding for each check that should find the same everywhere and does not."""
    findings = []
    for check in SAME_EVERYWHERE:
        seen: dict[str, str] = {}  # finding -> the first host that has it
        for visit in visits:
            for f in visit.findings:
                if f.check == check and f.grade is Grade.OK:
                    seen.setdefault(f.found, visit.host)
        if len(seen) > 1:
            examples = "; ".join(f"{host}: {found}" for found, host in list(seen.items())[:SHOWN])
            advice = "activate one environment, that all nodes see, before srun"
            findings.append(Finding(check, f"differs: {examples}", Grade.WARN, advice))
    return findings


def clocks(skews: Sequence[tuple[str, float]]) -> Finding:
    """Judge the clocks. `skews` has, for each host, the seconds by which its clock is ahead of the
    head's.
    """
    host, most = max(skews, key=lambda entry: abs(entry[1]))
    if abs(most) < MAX_SKEW:
        return Finding("clocks", f"within {max(abs(most), 0.001):.3f} s of the head's")
    way = "ahead of" if most > 0 else "behind"
    return Finding(
        "clocks",
        f"that of {host} is {abs(most):.1f} s {way} the head's",
        Grade.WARN,
        "mend its time service (chronyc tracking): logs and times of files mislead. hpclaunch "
        "itself never compares clocks",
    )
