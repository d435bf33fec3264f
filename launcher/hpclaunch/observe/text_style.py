"""How a screen is written: its width, colours and signs; and how figures are."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ..core.protocol.values import value
from ..core.protocol.wording import GIB, plain

MINUTE, HOUR, DAY = 60, 3600, 86400
ASCII = str.maketrans({"·": "-", "…": "~", "→": ">"})


class Colour(Enum):
    GOOD = "32"
    WARNING = "33"
    BAD = "31"
    FAINT = "2"
    STRONG = "1"


@value(frozen=True)
class TextStyle:
    width: int = 80
    colour: bool = False
    unicode: bool = True

    def line(self, *parts: str | tuple[str, Colour]) -> str:
        """One line, which is cut where it is too long. Names in it are harmless."""
        left = self.width
        written = []
        for part in parts:
            text, colour = part if isinstance(part, tuple) else (part, None)
            text = plain(text)
            text = text if self.unicode else text.translate(ASCII)
            text = text.encode("ascii", "replace").decode() if not self.unicode else text
            if len(text) > left:
                text = text[: max(0, left - 1)] + ("…" if self.unicode else "~") * (left > 0)
            left -= len(text)
            painted = self.colour and colour is not None and text.strip()
            written.append(f"\x1b[{colour.value}m{text}\x1b[0m" if painted and colour else text)
        return "".join(written).rstrip(" ")

    def table(
        self,
        titles: Sequence[str],
        rows: Sequence[Sequence[str | tuple[str, Colour]]],
        right: str = "",
    ) -> list[str]:
        """Columns as wide as they need to be. `right` has "r" for those that are flush right."""
        texts = [[c[0] if isinstance(c, tuple) else c for c in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(titles, *texts, strict=True)]
        lines = [self.line(*self._cells([(t, Colour.FAINT) for t in titles], widths, right))]
        return lines + [self.line(*self._cells(row, widths, right)) for row in rows]

    def _cells(
        self, row: Sequence[str | tuple[str, Colour]], widths: Sequence[int], right: str
    ) -> list[str | tuple[str, Colour]]:
        cells: list[str | tuple[str, Colour]] = []
        for i, cell in enumerate(row):
            text = cell[0] if isinstance(cell, tuple) else cell
            put = text.rjust if right[i : i + 1] == "r" else text.ljust
            is_last = i + 1 == len(row)
            padded = text if is_last and put == text.ljust else put(widths[i])
            padded += "" if is_last else "  "
            cells.append((padded, cell[1]) if isinstance(cell, tuple) else padded)
        return cells


def duration(seconds: float) -> str:
    """Write a time in its two largest units: "3 h 10 m"."""
    whole = int(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} m {whole % MINUTE:02d} s"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE:02d} m"
    return f"{whole // DAY} d {whole % DAY // HOUR:02d} h"


def seat_time(seconds: float) -> str:
    """Write a time, to a tenth of a second where it is short."""
    return f"{seconds:.1f} s" if seconds < MINUTE else duration(seconds)


def rate(pace: float) -> str:
    """Write how fast steps are made; `pace` is the seconds for one."""
    return f"{1 / pace:.3g} steps/s" if pace < 1 else f"{pace:.3g} s a step"


def short_rate(pace: float) -> str:
    """The same for a column."""
    return f"{1 / pace:.3g}/s" if pace < 1 else f"{pace:.3g} s"


def gib(number: float) -> str:
    """Write a number of bytes in a column."""
    return f"{number / GIB:.1f}G" if number < 100 * GIB else f"{number / GIB:.0f}G"
