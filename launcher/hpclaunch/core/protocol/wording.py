"""Words that several messages share."""

from __future__ import annotations

import signal
from collections.abc import Iterable

GIB = 1 << 30


def as_bytes(text: str) -> bytes:
    """For the user to read: the name of a file as it is on disk, whatever its encoding."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # surrogates that no name of a file has
        return text.encode(errors="backslashreplace")


def some(names: Iterable[str], most: int) -> str:
    """The first few, each once, and how many more there are: "n1, n2 and 3 more"."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - most
    return ", ".join(distinct[:most]) + (f" and {more} more" if more > 0 else "")


def plain(name: str) -> str:
    """A name that anybody can have chosen, for a line on the console: nothing in it is an escape
    code, ends the line, or is invisible."""
    return "".join(c if c.isprintable() else "?" for c in name)


def count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def size(number: float) -> str:
    """Of so many bytes."""
    if number >= GIB:
        return f"{number / GIB:.1f} GiB"
    return f"{number / (1 << 20):.0f} MiB"


def signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # a real-time signal
        return f"signal {signum}"
