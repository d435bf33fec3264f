"""Lines of workers with the time and the rank: 14:03:22 [3]: loss 0.25"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..core.protocol.wording import as_bytes, harmless, plain

# Control sequences of terminals: colours and text styles, and all others.
_COLOURS = re.compile(r"(\x1b\[[0-9;:]*m)")
_COMMANDS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-ln-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_PLAIN = "\x1b[0m"
_NO_TIME = "--:--:--"


class LogLines:
    """The lines of several rounds. `moment` returns the date and the time of day as texts. With
    `for_terminal`, control sequences other than colours are removed.
    """

    def __init__(self, moment: Callable[[float], tuple[str, str]], *, for_terminal: bool) -> None:
        self._moment = moment
        self._for_terminal = for_terminal
        self._day = ""  # of the last line

    def round(self, launch: str, number: int, at: float | None, ended: str) -> bytes:
        """Return the title of a round that began `at` this time. `ended`: how the last ended."""
        when = ""
        if at is not None:
            self._day, begun = self._moment(at)
            when = f", {self._day} {begun}"
        before = f"; {ended}" if ended else ""
        return as_bytes(f"-- {plain(launch)} round {number}{when}{plain(before)}\n")

    def line(self, at: float | None, rank: int, text: bytes) -> bytes:
        """Return a line that the worker wrote `at` this time; None if that is not known."""
        before, time = "", _NO_TIME
        if at is not None:
            day, time = self._moment(at)
            before = f"-- {day}\n" if day != self._day else ""
            self._day = day
        shown = self._shown(text) if self._for_terminal else text
        return f"{before}{time} [{rank}]: ".encode() + shown + b"\n"

    def _shown(self, text: bytes) -> bytes:
        if text.isascii() and text.decode("ascii").isprintable():  # as most lines are
            return text
        decoded = _COMMANDS.sub("", text.decode(errors="surrogateescape"))
        parts = _COLOURS.split(decoded)
        parts[::2] = map(harmless, parts[::2])
        end = _PLAIN if len(parts) > 1 else ""  # no colour may reach the next line
        return as_bytes("".join(parts) + end)


def visible(text: bytes) -> str:
    """Return the text of a line without colours, for a search."""
    decoded = text.decode(errors="replace")
    return _COLOURS.sub("", decoded) if "\x1b" in decoded else decoded
