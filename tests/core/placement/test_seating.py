"""The nodes that take part, and the ranks that the survivors keep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpclaunch.core.placement.assigning import next_groups


@pytest.mark.parametrize(
    ("last", "fit", "most", "expected"),
    [
        ([], [0, 1, 2], 0, [0, 1, 2]),
        ([], [0, 1, 2], 2, [0, 1]),  # one is a spare
        ([0, 1], [0, 1, 2], 2, [0, 1]),
        ([0, 1], [0, 2], 2, [0, 2]),  # which takes the place of the lost one
        ([0, 1, 2], [1, 2, 3], 3, [3, 1, 2]),
        ([0, 1, 2], [1, 2], 3, [2, 1]),  # no spare: the last one fills the hole
        ([0, 1, 2, 3], [1, 2], 0, [2, 1]),
        ([0, 1, 2], [0, 1], 3, [0, 1]),
        ([2, 1], [0, 1, 2], 3, [2, 1, 0]),  # one that comes back
        ([0, 1], [], 2, []),
    ],
)
def test_seats(last, fit, most, expected):
    assert next_groups(last, fit, most) == expected


NODES = st.lists(st.integers(0, 12), unique=True)


@given(NODES, NODES.map(sorted), st.integers(0, 12))
def test_everybody_there_has_one_seat_and_survivors_keep_theirs(last, fit, most):
    last = last[:most] if most else last
    groups = next_groups(last, fit, most)
    assert len(groups) == len(set(groups)) == min(most or len(fit), len(fit))
    assert set(groups) <= set(fit)
    stayed = [node for node in last if node in fit]
    assert set(stayed) <= set(groups)
    for group, node in enumerate(last):
        if node in fit and group < len(groups):
            assert groups[group] == node
