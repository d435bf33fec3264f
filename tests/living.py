"""The processes that are alive, without zombies that nobody has reaped yet, or ever will."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psutil


def living(pids: Iterable[int]) -> list[int]:
    """Return those of `pids` that are alive."""
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found
