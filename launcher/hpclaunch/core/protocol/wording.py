"""The form of names, numbers and signals in messages to the user."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

GIB = 1 << 30
# Characters that a terminal may take for a command: control characters but the tab, also as single
# bytes (surrogates in the text), and characters that change the direction of text or end a line.
_COMMANDS = re.compile(
    r"[\x00-\x08\n-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\udc80-\udc9f]"
)
_UNINDENTED = re.compile(r"\n(?!  |$)")


def for_console(text: str) -> bytes:
    """Encode a message for the user's console, whatever names it contains.

    Lines after the first are indented, so that a name with a newline in it cannot look like another
    message.
    """
    lines = _UNINDENTED.sub("\n  ", text).split("\n")
    return as_bytes("\n".join(map(harmless, lines)))


def harmless(text: str) -> str:
    """Replace characters that a terminal may take for a command, and line ends, with "?". Other
    characters in names of files stay as they are.
    """
    # Encode and decode, since names of files are not decoded in the C locale.
    return _COMMANDS.sub("?", as_bytes(text).decode(errors="surrogateescape"))


def harmless_json(text: str) -> str:
    """Escape control characters in the strings of a JSON text, since JSON allows some of them. The
    text has no line breaks between its values.
    """
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def as_bytes(text: str) -> bytes:
    """Encode a text. Names of files become the same bytes as on disk, whatever their encoding."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # surrogates that do not come from names of files
        return text.encode(errors="backslashreplace")


NAMES = 8  # hosts named in a message; the rest is only counted


def some(names: Iterable[str], most: int) -> str:
    """List at most `most` of the names, each once, and count the rest: "n1, n2 and 3 more"."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - most
    return ", ".join(distinct[:most]) + (f" and {more} more" if more > 0 else "")


def plain(name: str) -> str:
    """Make a name from outside safe for the console: put "?" for characters that could be an escape
    code, end the line or be invisible.
    """
    return "".join(c if c.isprintable() else "?" for c in name)


def who(host: str, rank: int) -> str:
    """Return the name of a rank, or of a node as a whole (NO_RANK)."""
    return host if rank < 0 else f"rank {rank} on {host}"


def count(n: int, noun: str) -> str:
    """Write a number with its noun: "1 node", "2 nodes"."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def size(number: float) -> str:
    """Write a number of bytes: "1.5 GiB", "300 MiB" or "64 KiB"."""
    if number >= GIB:
        return f"{number / GIB:.1f} GiB"
    if 0 < number < 1 << 20:
        return f"{number / (1 << 10):.0f} KiB"
    return f"{number / (1 << 20):.0f} MiB"


def signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # a real-time signal
        return f"signal {signum}"


def changed_too_early(file: str, name: str, line: int) -> str:
    """Return the reason why a worker starts cold: its script sets this variable."""
    return f"{file} sets {name} in line {line}, before it imports torch"
