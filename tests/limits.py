"""Limits that tests give to helpers in place of seconds, which a busy machine may exceed."""

from __future__ import annotations

import os

LONG = 120.0  # seconds; far more than any of this takes


class Until(float):
    """A limit that is over once a file exists, and not before. It is also the time at which it is
    over, whenever it begins.
    """

    def __new__(cls, file: str) -> Until:
        made = super().__new__(cls, "inf")
        made.file = file
        return made

    file: str

    def __radd__(self, now: float) -> Until:
        return self

    def __lt__(self, now: float) -> bool:
        return os.path.exists(self.file)

    __le__ = __lt__


class Patience(float):
    """A limit that is short while the process whose pid is in a file is stopped, otherwise LONG."""

    def __new__(cls, seconds: float, file: str) -> Patience:
        made = super().__new__(cls, seconds)
        made.file = file
        return made

    file: str

    def __radd__(self, now: float) -> float:
        return now + (float(self) if self._is_stopped() else LONG)

    def _is_stopped(self) -> bool:
        try:
            with open(self.file) as pid, open(f"/proc/{pid.read()}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0] == "T"
        except OSError:
            return False
