"""The style of a screen: its width, colours and characters, and the form of figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TypeAlias

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


Cell: TypeAlias = "str | tuple[str, Colour]"
LocalTime: TypeAlias = Callable[[float, str], str]  # writes a time in the form of strftime
MOMENT = "%Y-%m-%d %H:%M:%S"


@value(frozen=True)
class TextStyle:
    width: int = 80
    colour: bool = False
    unicode: bool = True

    def line(self, *parts: Cell) -> str:
        """Return one line, cut where it is too long. Control characters in names become "?"."""
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
        rows: Sequence[Sequence[Cell]],
        right: str = "",
    ) -> list[str]:
        """Return the lines of a table. `right` has "r" for each column that is flush right."""
        table: list[Sequence[Cell]] = [[(title, Colour.FAINT) for title in titles], *rows]
        widths = [max(len(_text(cell)) for cell in column) for column in zip(*table, strict=True)]
        return [self.line(*_cells(row, widths, right)) for row in table]


def _text(cell: Cell) -> str:
    return cell[0] if isinstance(cell, tuple) else cell


def _cells(row: Sequence[Cell], widths: Sequence[int], right: str) -> Iterator[Cell]:
    """Yield the cells of a row, padded to these widths."""
    for i, cell in enumerate(row):
        text, gap = _text(cell), "  " if i + 1 < len(row) else ""
        if right[i : i + 1] == "r":
            text = text.rjust(widths[i])
        elif gap:
            text = text.ljust(widths[i])
        yield (text + gap, cell[1]) if isinstance(cell, tuple) else text + gap


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


def share(part: float) -> str:
    """Write a part of a whole: "12.3 %"."""
    return f"{100 * part:.1f} %"


def seat_time(seconds: float) -> str:
    """Write a time, to a tenth of a second where it is short."""
    return f"{seconds:.1f} s" if seconds < MINUTE else duration(seconds)


def rate(pace: float) -> str:
    """Write how fast steps are made; `pace` is the seconds for one."""
    return f"{1 / pace:.3g} steps/s" if pace < 1 else f"{pace:.3g} s a step"


def short_rate(pace: float) -> str:
    """Write how fast steps are made, for a column."""
    return f"{1 / pace:.3g}/s" if pace < 1 else f"{pace:.3g} s"


def gib(number: float) -> str:
    """Write a number of bytes in a column."""
    return f"{number / GIB:.1f}G" if number < 100 * GIB else f"{number / GIB:.0f}G"
