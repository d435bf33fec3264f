"""Launches of a job, put together."""

from __future__ import annotations

import pytest

from hpclaunch.core.protocol.facts import Category
from hpclaunch.observe.job_report import report
from hpclaunch.observe.launches import Launch, account
from hpclaunch.observe.ledger_entries import NEVER_SAVED, LedgerEntry

TRAINING, REDONE, SCRIPT = Category.TRAINING, Category.REDONE, Category.SCRIPT


def trains(begin, end, number=0, resumed=None):
    """With one seat."""
    spent = {TRAINING: end - begin}
    return LedgerEntry(begin, end, 1.0, spent, number, (begin, end), resumed)


def test_a_job_that_was_requeued():
    """Each of its runs has its own allocation; what was not saved in the first is done again."""
    first = Launch("1.0", (trains(10, 100),), allocated=0.0)
    second = Launch("1.0.r1", (trains(520, 600, resumed=80.0),), allocated=500.0)
    found = account([first, second])
    assert found.spent == pytest.approx({SCRIPT: 30, TRAINING: 70 + 80, REDONE: 20})
    assert found.goodput == pytest.approx(150 / 200)


def test_two_launches_of_one_job_script():
    first = Launch("1.0", (trains(10, 100),), allocated=0.0)
    second = Launch("1.1", (trains(105, 200),), allocated=0.0)
    assert account([second, first]).spent == pytest.approx({SCRIPT: 15, TRAINING: 185})


def test_a_short_launch_beside_a_long_one():
    """The job script's own time is only the time in which no launch ran."""
    spans = ((0, 100), (10, 20), (110, 120))
    launches = [Launch(f"1.{i}", (trains(*at),), allocated=0.0) for i, at in enumerate(spans)]
    assert account(launches).spent == pytest.approx({SCRIPT: 10, TRAINING: 120})


@pytest.mark.parametrize(("first", "second"), [("1.0", "1.1"), ("1_0.0", "1_1.0")])
def test_another_training_does_nothing_of_the_first_one_again(first, second):
    """Another program in the job script, or another element of an array."""
    one = Launch(first, (trains(10, 100, resumed=NEVER_SAVED),), allocated=0.0)
    begun = trains(105, 150, resumed=NEVER_SAVED), trains(150, 200, 1, resumed=140.0)
    spent = account([one, Launch(second, begun, allocated=0.0)]).spent
    assert spent[TRAINING] == pytest.approx(90 + 95)
    assert REDONE not in spent


def test_another_element_that_continues_with_a_checkpoint_of_the_first_one():
    """Elements of a chain continue from each other's checkpoints."""
    first = Launch("1_1.0", (trains(0, 100),))
    second = Launch("1_2.0", (trains(200, 300, resumed=80.0),))
    assert account([first, second]).spent == pytest.approx({TRAINING: 180, REDONE: 20})


def test_elements_that_run_at_the_same_time():
    """Each has its own allocation, and its own checkpoints."""
    one = Launch("1_0.0", (trains(10, 100),), allocated=0.0)
    begun = trains(30, 60, resumed=NEVER_SAVED), trains(60, 90, 1, resumed=50.0)
    other = Launch("1_1.0", begun, allocated=25.0)
    found = account([one, other])
    assert found.spent == pytest.approx({SCRIPT: 15, TRAINING: 90 + 60})


def test_without_steps_all_after_the_rendezvous_is_training():
    serves = LedgerEntry(0, 10, 1.0, {Category.IMPORTS: 2.0, Category.LOADING: 8.0}, 0)
    found = account([Launch("1.0", (serves,))])
    assert not found.steps_seen
    assert found.goodput == pytest.approx(0.8)


def test_launches_of_one_name_have_rounds_of_their_own():
    launches = [Launch("1.batch", (trains(at, at + 50),)) for at in (0, 100)]
    assert report(launches).rounds == 2
