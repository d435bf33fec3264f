"""Selection of a few cases for `make quick`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def quick_and_exhaustive(cases: Iterable[object], quick: int) -> list[object]:
    """Mark all cases except the first `quick` ones as `exhaustive`."""
    return [
        case if number < quick else pytest.param(case, marks=pytest.mark.exhaustive)
        for number, case in enumerate(cases)
    ]
