"""A helper that was killed has a successor at once, unless that ends again and again."""

from __future__ import annotations

import pytest

from hpclaunch.agent import successors
from hpclaunch.agent.successors import MOST, MOST_FAILED, WITHIN, Successors
from hpclaunch.observe.console import words


class Knitting:
    does = "knits"
    costs = ""

    def was_killed(self):
        return True


class Failing(Knitting):
    def was_killed(self):
        return False


class Weaving(Knitting):
    does = "weaves"
    costs = "a thread is lost"


@pytest.fixture
def clock(monkeypatch):
    times = [0.0]
    monkeypatch.setattr(successors.time, "monotonic", lambda: times[0])
    return times


def test_the_user_learns_which_one_it_was_and_what_it_costs(clock):
    recorded = []
    is_replaced = Successors("n1", recorded.append)
    assert is_replaced(Knitting())
    assert is_replaced(Weaving())
    assert list(map(words, recorded)) == [
        "the process that knits on n1 was killed and replaced",
        "the process that weaves on n1 was killed and replaced: a thread is lost",
    ]


def test_one_that_ends_again_and_again_has_none(clock):
    recorded = []
    is_replaced = Successors("n1", recorded.append)
    assert all(is_replaced(Knitting()) for _ in range(MOST))
    assert not is_replaced(Knitting())
    again = "the process that knits on n1 was killed again and again, and is not replaced"
    assert words(recorded[-1]) == again
    assert is_replaced(Weaving())
    clock[0] += WITHIN
    assert is_replaced(Knitting())


def test_one_that_fails_by_itself_would_fail_again(clock):
    recorded = []
    is_replaced = Successors("n1", recorded.append)
    assert [is_replaced(Failing()) for _ in range(MOST_FAILED + 1)] == [True, True, False]
    assert words(recorded[0]) == "the process that knits on n1 failed and was replaced"
    assert (
        words(recorded[-1])
        == "the process that knits on n1 failed again and again, and is not replaced"
    )
    clock[0] += WITHIN
    assert is_replaced(Failing())
