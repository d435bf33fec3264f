"""Books of several heads and launches, put together."""

from __future__ import annotations

import itertools

import pytest

from hpclaunch.core.ledger.book import NEVER_SAVED, Book, Category, LedgerEntry
from hpclaunch.core.ledger.job_report import report
from hpclaunch.core.ledger.summing import Launch, account, entries_of

TRAINING, REDONE, DETECTION = Category.TRAINING, Category.REDONE, Category.DETECTION
RESTART, SCRIPT = Category.RESTART, Category.SCRIPT


def trains(begin, end, number=0, resumed=None):
    """With one seat."""
    spent = {TRAINING: end - begin}
    return LedgerEntry(begin, end, 1.0, spent, number, (begin, end), resumed)


def restarts(begin, end):
    return LedgerEntry(begin, end, 1.0, {RESTART: end - begin})


def book(*entries, term=0):
    return Book(term, entries[0].begin, entries[-1].end, entries)


@pytest.mark.parametrize(
    ("books", "expected"),
    [
        pytest.param(
            [book(trains(0, 90)), book(trains(0, 100), restarts(100, 110), term=1)],
            {TRAINING: 100, RESTART: 10},
            id="the next head knows the round from its begin",
        ),
        pytest.param(
            [book(trains(0, 90), restarts(90, 95)), book(trains(0, 97), restarts(97, 99), term=1)],
            {TRAINING: 90, RESTART: 7, DETECTION: 2},
            id="but the last head has seen its end",
        ),
        pytest.param(
            [book(trains(0, 90)), book(restarts(100, 110), term=1)],
            {TRAINING: 90, RESTART: 10, DETECTION: 10},
            id="nobody led for a while",
        ),
        pytest.param(
            [book(trains(0, 35)), book(restarts(40, 45)), book(trains(0, 100), term=1)],
            {TRAINING: 100},
            id="an agent that was started anew led nobody",
        ),
        pytest.param(
            [book(trains(0, 200)), book(trains(0, 100), trains(100, 150, 1), term=1)],
            {TRAINING: 150},
            id="a head that was cut off goes on for a while",
        ),
    ],
)
def test_no_second_is_lost_or_there_twice(books, expected):
    entries = entries_of(books)
    assert all(one.end == other.begin for one, other in itertools.pairwise(entries))
    assert account([Launch("1.0", tuple(books))]).spent == pytest.approx(expected)


def test_a_job_that_was_requeued():
    """Each of its runs has its own allocation; what was not saved in the first is done again."""
    first = Launch("1.0", (book(trains(10, 100)),), allocated=0.0)
    second = Launch("1.0.r1", (book(trains(520, 600, resumed=80.0)),), allocated=500.0)
    found = account([first, second])
    assert found.spent == pytest.approx({SCRIPT: 30, TRAINING: 70 + 80, REDONE: 20})
    assert found.goodput == pytest.approx(150 / 200)


def test_two_launches_of_one_job_script():
    first = Launch("1.0", (book(trains(10, 100)),), allocated=0.0)
    second = Launch("1.1", (book(trains(105, 200)),), allocated=0.0)
    assert account([second, first]).spent == pytest.approx({SCRIPT: 15, TRAINING: 185})


def test_a_short_launch_beside_a_long_one():
    """The job script's is only the time in which none of them ran."""
    spans = ((0, 100), (10, 20), (110, 120))
    launches = [Launch(f"1.{i}", (book(trains(*at)),), 0.0) for i, at in enumerate(spans)]
    assert account(launches).spent == pytest.approx({SCRIPT: 10, TRAINING: 120})


@pytest.mark.parametrize(("first", "second"), [("1.0", "1.1"), ("1_0.0", "1_1.0")])
@pytest.mark.parametrize("resumed", [NEVER_SAVED, 0.0])
def test_another_training_does_nothing_of_the_first_one_again(first, second, resumed):
    """Another program in the job script, or another element of an array."""
    one = Launch(first, (book(trains(10, 100, resumed=NEVER_SAVED)),), allocated=0.0)
    begun = trains(105, 150, resumed=resumed), trains(150, 200, 1, resumed=140.0)
    spent = account([one, Launch(second, (book(*begun),), allocated=0.0)]).spent
    assert spent[TRAINING] == pytest.approx(90 + 85)
    assert spent[REDONE] == pytest.approx(10)


def test_another_element_that_goes_on_with_a_checkpoint_of_the_first_one():
    """As in a chain."""
    first = Launch("1_1.0", (book(trains(0, 100)),))
    second = Launch("1_2.0", (book(trains(200, 300, resumed=80.0)),))
    assert account([first, second]).spent == pytest.approx({TRAINING: 180, REDONE: 20})


def test_elements_that_run_at_the_same_time():
    """Each has its own allocation, and its own checkpoints."""
    one = Launch("1_0.0", (book(trains(10, 100)),), allocated=0.0)
    begun = trains(30, 60, resumed=NEVER_SAVED), trains(60, 90, 1, resumed=50.0)
    other = Launch("1_1.0", (book(*begun),), allocated=25.0)
    found = account([one, other])
    assert found.spent == pytest.approx({SCRIPT: 15, TRAINING: 90 + 50, REDONE: 10})


def test_without_steps_all_after_the_rendezvous_is_training():
    serves = LedgerEntry(0, 10, 1.0, {Category.IMPORTS: 2.0, Category.LOADING: 8.0}, 0)
    found = account([Launch("1.0", (book(serves),))])
    assert not found.steps_seen
    assert found.goodput == pytest.approx(0.8)


def test_launches_of_one_name_have_rounds_of_their_own():
    launches = [Launch("1.batch", (book(trains(at, at + 50)),)) for at in (0, 100)]
    assert report(launches).rounds == 2
