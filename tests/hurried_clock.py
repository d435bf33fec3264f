"""A clock that hurries when a test says so, in this process and in helpers that it starts.

A limit of minutes is then reached at once, and on no account by a machine that is busy.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

SPEED = 10_000.0
FAR = 1000.0  # seconds, which take a tenth of a second


class HurriedClock:
    """The module `time`, whose monotonic clock has run faster since the time in a file, if there is
    such a file.
    """

    def __init__(self, file: str | Path) -> None:
        self._file = Path(file)

    def monotonic(self) -> float:
        try:
            since = float(self._file.read_text() or "inf")  # it is being written
        except FileNotFoundError:
            since = float("inf")
        now = time.monotonic()
        return now + SPEED * max(0.0, now - since)

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


@contextlib.contextmanager
def hurried(file: Path) -> Iterator[None]:
    """Have the clock that goes by this file hurry."""
    file.write_text(str(time.monotonic()))
    yield
    file.unlink()


def statements(file: Path, *modules: str) -> str:
    """Return what a helper's program begins with so that these modules of it have such a clock."""
    here = str(Path(__file__).parent)
    names = ", ".join(f"import_module({'hpclaunch.' + module!r})" for module in modules)
    return (
        f"import json, sys; sys.path += [*json.loads(sys.argv[1]), {here!r}]; "
        "from importlib import import_module; from hurried_clock import HurriedClock; "
        f"[setattr(each, 'time', HurriedClock({str(file)!r})) for each in [{names}]]; "
    )
