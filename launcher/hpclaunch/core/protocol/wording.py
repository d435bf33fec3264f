"""How messages to the user write names, numbers and signals."""

from __future__ import annotations

import signal
from collections.abc import Iterable

GIB = 1 << 30


def as_bytes(text: str) -> bytes:
    """Encode a text for the user. Names of files become the bytes that they are on disk, whatever
    their encoding.
    """
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # surrogates that no name of a file has
        return text.encode(errors="backslashreplace")


def some(names: Iterable[str], most: int) -> str:
    """List at most `most` of the names, each once, and count the rest: "n1, n2 and 3 more"."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - most
    return ", ".join(distinct[:most]) + (f" and {more} more" if more > 0 else "")


def plain(name: str) -> str:
    """Make a name safe for a line on the console. Anybody may have chosen it, so what could be an
    escape code, end the line or be invisible becomes "?".
    """
    return "".join(c if c.isprintable() else "?" for c in name)


def count(n: int, noun: str) -> str:
    """Write a number with its noun: "1 node", "2 nodes"."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def size(number: float) -> str:
    """Write a number of bytes: "1.5 GiB" or "300 MiB"."""
    if number >= GIB:
        return f"{number / GIB:.1f} GiB"
    return f"{number / (1 << 20):.0f} MiB"


def signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # a real-time signal
        return f"signal {signum}"
