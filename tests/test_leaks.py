"""The smallest leaks that are found."""

from __future__ import annotations

import pytest

import leaks

RESTARTS = range(500, 1001, 10)


def samples(rate: float, unit: int = 1, step: int = 0) -> list[tuple[int, int]]:
    """Return a figure that grows with each restart, in whole units, and once by a step."""
    return [(n, int(rate * n) // unit * unit + step * (n > 700)) for n in RESTARTS]


@pytest.mark.parametrize(
    ("figure", "leak", "unit"),
    [("descriptors", 0.1, 1), ("watches", 0.1, 1), ("memory", 500, 4096)],
)
def test_a_leak_is_found(figure: str, leak: float, unit: int) -> None:
    for step in (0, 40 * unit):
        assert leaks.slope(samples(leak, unit, step)) > leaks.LIMITS[figure]
        assert leaks.slope(samples(0, unit, step)) == 0
