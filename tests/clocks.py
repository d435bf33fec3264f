"""Clocks in place of the module `time`: a limit of minutes is over at once when a test says so, and
never because the machine is busy.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

SPEED = 10_000.0
FAR = 1000.0  # seconds, which take a fast clock a tenth of a second


class AheadClock:
    """The module `time`, whose monotonic clock is ahead by some seconds. Sleeps take no time."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        self.ahead += seconds

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


class FastClock:
    """The module `time`, whose monotonic clock runs fast from the time in a file, as long as there
    is such a file. A test can set it in a helper that it starts.
    """

    def __init__(self, file: str | Path) -> None:
        self._file = Path(file)

    def monotonic(self) -> float:
        try:
            since = float(self._file.read_text())
        except FileNotFoundError:
            since = float("inf")
        now = time.monotonic()
        return now + SPEED * max(0.0, now - since)

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


@contextlib.contextmanager
def fast(file: Path) -> Iterator[None]:
    """Make the clocks with this file run fast. Afterwards they show the real time again."""
    draft = file.with_name(f"{file.name}-draft")
    draft.write_text(str(time.monotonic()))
    os.replace(draft, file)
    try:
        yield
    finally:
        file.unlink()


def set_fast(file: Path, *modules: str) -> str:
    """Return a statement that gives these modules of a helper such a clock."""
    names = ", ".join(f"import_module({'hpclaunch.' + module!r})" for module in modules)
    return (
        "from importlib import import_module; from clocks import FastClock; "
        f"[setattr(each, 'time', FastClock({str(file)!r})) for each in [{names}]]"
    )
