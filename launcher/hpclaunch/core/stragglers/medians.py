"""The median, without the 10 ms that it takes to import the standard library's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T", int, float)


def lower_median(values: Iterable[T]) -> T:
    """Return the value in the middle, of two the lower one. There is at least one value."""
    found = sorted(values)
    return found[(len(found) - 1) // 2]
