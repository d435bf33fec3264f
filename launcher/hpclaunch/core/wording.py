"""Words that several messages share."""

from __future__ import annotations

from collections.abc import Iterable


def some(names: Iterable[str], most: int) -> str:
    """The first few, each once, and how many more there are: "n1, n2 and 3 more"."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - most
    return ", ".join(distinct[:most]) + (f" and {more} more" if more > 0 else "")
