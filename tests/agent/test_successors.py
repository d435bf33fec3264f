"""A helper that was killed is replaced at once, unless its successors end again and again."""

from __future__ import annotations

import pytest

from hpclaunch.agent import successors
from hpclaunch.agent.successors import MOST, MOST_FAILED, WITHIN, Successors
from hpclaunch.core.protocol.process_kinds import ProcessKind
from hpclaunch.observe.console import words
from hpclaunch.observe.node_console import LOST_WITH


class Serving:
    kind = ProcessKind.METRICS

    def was_killed(self):
        return True


class Failing(Serving):
    def was_killed(self):
        return False


class Reading(Serving):
    kind = ProcessKind.GPUS


@pytest.fixture
def clock(monkeypatch):
    times = [0.0]
    monkeypatch.setattr(successors.time, "monotonic", lambda: times[0])
    return times


def test_the_message_names_the_helper_and_what_may_be_lost(clock):
    recorded = []
    is_replaced = Successors("n1", recorded.append)
    assert is_replaced(Serving())
    assert is_replaced(Reading())
    assert list(map(words, recorded)) == [
        "the process that serves the metrics on n1 was killed and replaced",
        f"the process that reads NVML on n1 was killed and replaced: {LOST_WITH[ProcessKind.GPUS]}",
    ]


def test_a_helper_that_ends_again_and_again_is_not_replaced(clock):
    recorded = []
    is_replaced = Successors("n1", recorded.append)
    assert all(is_replaced(Serving()) for _ in range(MOST))
    assert not is_replaced(Serving())
    again = (
        "the process that serves the metrics on n1 was killed again and again, and is not replaced"
    )
    assert words(recorded[-1]) == again
    assert is_replaced(Reading())
    clock[0] += WITHIN
    assert is_replaced(Serving())


def test_a_helper_that_the_next_request_starts_is_not_said_to_be_gone_for_good(clock):
    recorded = []
    is_replaced = Successors("n1", recorded.append)
    assert [is_replaced(Reading()) for _ in range(MOST + 1)][-1] is False
    again = "was killed again and again, and now starts only when it is needed"
    assert again in words(recorded[-1])
    assert not is_replaced(Reading())
    assert len(recorded) == MOST + 1  # it is said once
    clock[0] += WITHIN
    assert is_replaced(Reading())
    assert len(recorded) == MOST + 2


def test_a_helper_that_fails_by_itself_is_replaced_less_often(clock):
    recorded = []
    is_replaced = Successors("n1", recorded.append)
    assert [is_replaced(Failing()) for _ in range(MOST_FAILED + 1)] == [True, True, False]
    assert words(recorded[0]) == "the process that serves the metrics on n1 failed and was replaced"
    assert (
        words(recorded[-1])
        == "the process that serves the metrics on n1 failed again and again, and is not replaced"
    )
    clock[0] += WITHIN
    assert is_replaced(Failing())


def test_kills_do_not_count_as_failures(clock):
    helper, is_replaced = Serving(), Successors("n1", lambda _: None)

    def ends(*, was_killed):
        helper.was_killed = lambda: was_killed
        return is_replaced(helper)

    for _ in range(MOST_FAILED):
        assert ends(was_killed=True)
        assert ends(was_killed=False)
    assert ends(was_killed=True)
    assert not ends(was_killed=False)
