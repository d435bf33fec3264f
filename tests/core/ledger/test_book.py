"""Entries of a book: cut off, put together, and rewound to what was saved."""

from __future__ import annotations

import pytest

from hpclaunch.core.ledger.book import (
    MOST_ENDS,
    MOST_ENTRIES,
    NEVER_SAVED,
    Book,
    Category,
    LedgerEntry,
    Pages,
    cut_off,
    moved,
    rewound,
)
from hpclaunch.core.protocol.facts import EndReason, RoundEnded

TRAINING, REDONE, RESTART = Category.TRAINING, Category.REDONE, Category.RESTART


def a_round(begin, end, number=0, resumed=None):
    """Two seats train in the second half of it."""
    half = (end - begin) / 2
    spent = {Category.IMPORTS: 2 * half, TRAINING: 2 * half}
    return LedgerEntry(begin, end, 2.0, spent, number, (begin + half, end), resumed)


def between(begin, end, seats=2.0):
    return LedgerEntry(begin, end, seats, {RESTART: (end - begin) * seats})


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


def test_what_is_between_two_rounds_is_one_entry():
    pages = Pages()
    for entry in (between(0.0, 1.0, seats=1.0), between(1.0, 3.0), a_round(3.0, 9.0)):
        pages.add(entry)
    assert [(e.begin, e.end) for e in pages.entries] == [(0.0, 3.0), (3.0, 9.0)]
    assert pages.entries[0].spent == {RESTART: 6.0}  # the seats that are known by now


def test_a_round_rewinds_those_before_it():
    pages = Pages()
    pages.add(a_round(0.0, 20.0))
    pages.add(a_round(20.0, 30.0, 1, resumed=15.0))
    assert pages.entries[0].spent[REDONE] == pytest.approx(10.0)
    assert REDONE not in pages.entries[1].spent


def test_pages_are_of_bounded_size_and_lose_no_second():
    pages = Pages()
    rounds = 3 * MOST_ENTRIES
    for number in range(rounds):
        pages.add(a_round(10.0 * number, 10.0 * number + 6.0, number))
        pages.add(between(10.0 * number + 6.0, 10.0 * (number + 1)))
        pages.note_end(RoundEnded(number, 0.0, 0.0, (EndReason.FAILURE,)))
    assert len(pages.entries) <= MOST_ENTRIES
    total = sum(sum(entry.spent.values()) for entry in pages.entries)
    assert total == pytest.approx(rounds * 10.0 * 2)
    assert len(pages.ends) == MOST_ENDS
    assert pages.ends[0].round == 0  # the first one stays, and the last ones
    assert pages.ends[-1].round == rounds - 1


def test_on_another_clock():
    book = Book(0, 0.0, 20.0, (a_round(0.0, 20.0, resumed=NEVER_SAVED),))
    there = moved(book, 100.0)
    assert (there.begin, there.until) == (100.0, 120.0)
    assert there.entries[0].trained == (110.0, 120.0)
    assert there.entries[0].resumed == NEVER_SAVED
