"""Tables of rich as text, for commands that print one."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH = 100  # columns where there is no terminal


def as_text(parts: Iterable[RenderableType]) -> str:
    """Render these parts for standard output."""
    from rich.console import Console

    tty = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if tty else WIDTH
    file = io.StringIO()
    console = Console(file=file, force_terminal=tty, width=width, highlight=False)
    for part in parts:
        console.print(part)
    lines = file.getvalue().splitlines()
    return "".join(f"{line if tty else line.rstrip()}\n" for line in lines)
