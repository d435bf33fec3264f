"""Imports that the start does not need, a second after it.

An import still later might block the loop, if the file system has stalled by then.
"""

from __future__ import annotations

import math
import time
from importlib import import_module

from .adapter import Adapter

AFTER = 1.0  # seconds
MODULES = (
    "core.head.job_snapshots",
    "core.member.moments",
    "observe.end_causes",
    "observe.job_report",
    "observe.launches",
    "observe.ledger",
    "system.logs.history_files",
    "agent.sequel",
)


class LaterImports(Adapter):
    def __init__(self) -> None:
        self._due = time.monotonic() + AFTER

    def deadline(self) -> float:
        return self._due

    def update(self, now: float) -> None:
        if now >= self._due:
            self._due = math.inf
            for module in MODULES:
                import_module(f"hpclaunch.{module}")
