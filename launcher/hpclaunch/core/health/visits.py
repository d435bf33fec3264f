"""How what the doctor finds on many hosts becomes one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .findings import Finding, Grade

ALIKE = ("hpclaunch", "torch")  # checks that should find the same on all hosts
SHOWN = 4  # different findings of one check; the rest is counted
SKEW = 1.0  # seconds between two clocks


@dataclass(frozen=True, slots=True)
class Visit:
    """An agent of the step to the head: what it found, and what its clock says."""

    host: str
    findings: tuple[Finding, ...]
    clock: float = 0.0  # seconds since 1970
    echo: float = 0.0  # of the call that this answers


@dataclass(frozen=True, slots=True)
class Call:
    """The head to an agent: tell me your clock, or, with a code, leave."""

    at: float
    code: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    finding: Finding
    hosts: tuple[str, ...]


def rows(visits: Sequence[Visit]) -> list[Row]:
    """By check in the order of the first host; the same finding on several hosts is one row."""
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
    """The worst first; what is different on every one of a thousand hosts is told of a few."""
    order = (Grade.FAIL, Grade.WARN, Grade.OK)
    found = sorted(found, key=lambda row: order.index(row.finding.grade))
    table: list[Row] = []
    for grade in order:
        those = [row for row in found if row.finding.grade is grade]
        table += those[:SHOWN]
        if rest := those[SHOWN:]:
            hosts = tuple(dict.fromkeys(host for row in rest for host in row.hosts))
            advice = "see the rows above" if grade is not Grade.OK else ""
            table.append(Row(Finding(check, "the like", grade, advice), hosts))
    return table


def differences(visits: Sequence[Visit]) -> list[Finding]:
    """What should be the same everywhere and is not."""
    findings = []
    for check in ALIKE:
        seen: dict[str, str] = {}  # finding -> the first host that has it
        for visit in visits:
            for f in visit.findings:
                if f.check == check and f.grade is Grade.OK:
                    seen.setdefault(f.found, visit.host)
        if len(seen) > 1:
            those = "; ".join(f"{host}: {found}" for found, host in list(seen.items())[:SHOWN])
            advice = "activate one environment, that all nodes see, before srun"
            findings.append(Finding(check, f"differs: {those}", Grade.WARN, advice))
    return findings


def clocks(skews: Sequence[tuple[str, float]]) -> Finding:
    """`skews` are the seconds by which each host's clock is ahead of the head's."""
    host, most = max(skews, key=lambda entry: abs(entry[1]))
    if abs(most) < SKEW:
        return Finding("clocks", f"within {max(abs(most), 0.001):.3f} s of the head's")
    way = "ahead of" if most > 0 else "behind"
    return Finding(
        "clocks",
        f"that of {host} is {abs(most):.1f} s {way} the head's",
        Grade.WARN,
        "mend its time service (chronyc tracking): logs and times of files mislead. hpclaunch "
        "itself never compares clocks",
    )
