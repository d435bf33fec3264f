"""Entries of a ledger: cut off, and rewound to what was saved."""

from __future__ import annotations

import pytest

from hpclaunch.core.protocol.facts import Category
from hpclaunch.observe.ledger_entries import NEVER_SAVED, LedgerEntry, cut_off, rewound

TRAINING, REDONE = Category.TRAINING, Category.REDONE


def a_round(begin, end, number=0, resumed=None):
    """Return an entry in whose second half two seats train."""
    half = (end - begin) / 2
    spent = {Category.IMPORTS: 2 * half, TRAINING: 2 * half}
    return LedgerEntry(begin, end, 2.0, spent, number, (begin + half, end), resumed)


@pytest.mark.parametrize(
    ("saved", "training", "redone"),
    [
        pytest.param(25.0, 20.0, 0.0, id="after its end"),
        pytest.param(20.0, 20.0, 0.0, id="at its end"),
        pytest.param(18.0, 16.0, 4.0, id="while it trained"),
        pytest.param(10.0, 0.0, 20.0, id="before its first step"),
        pytest.param(NEVER_SAVED, 0.0, 20.0, id="never"),
    ],
)
def test_steps_after_the_checkpoint_are_done_twice(saved, training, redone):
    once = rewound(a_round(0.0, 20.0), saved)
    assert once.spent[TRAINING] == pytest.approx(training)
    assert once.spent.get(REDONE, 0.0) == pytest.approx(redone)
    twice = rewound(once, saved)
    assert twice.spent == once.spent


def test_an_older_checkpoint_costs_more():
    once = rewound(rewound(a_round(0.0, 20.0), 18.0), 12.0)
    assert once.spent[TRAINING] == pytest.approx(4.0)
    assert once.spent[REDONE] == pytest.approx(16.0)


def test_a_part_of_an_entry():
    part = cut_off(a_round(0.0, 20.0), 15.0)
    assert part.end == 15.0
    assert sum(part.spent.values()) == pytest.approx(30.0)
    assert part.trained == (10.0, 15.0)
    assert cut_off(a_round(0.0, 20.0), 5.0).trained is None
