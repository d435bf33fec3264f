"""Findings: what the health checks and the doctor have found on a host and its GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Grade(str, Enum):
    OK = "ok"
    WARN = "warn"  # training may suffer
    FAIL = "FAIL"  # training would break


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check on one host. WARN and FAIL come with `advice`."""

    check: str
    found: str
    grade: Grade = Grade.OK
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.grade.value}: {self.check}: {self.found}"


def failed(findings: Iterable[Finding]) -> bool:
    return any(f.grade is Grade.FAIL for f in findings)


def reason(findings: Iterable[Finding]) -> str:
    return "; ".join(f"{f.check}: {f.found}" for f in findings)
