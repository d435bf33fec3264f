"""The time of a round by activity, from the reports of its agents."""

from __future__ import annotations

import pytest

from hpclaunch.core.head.round_shares import Holder, RoundPart, seats_of, split, together
from hpclaunch.core.protocol.facts import Category
from hpclaunch.core.protocol.model import Doing, Spent

START, IMPORTS, RENDEZVOUS = Category.START, Category.IMPORTS, Category.RENDEZVOUS
LOADING, TRAINING, SAVING = Category.LOADING, Category.TRAINING, Category.SAVING
DETECTION, END = Category.DETECTION, Category.END


def reported(*seconds, doing):
    """Seconds of a start, imports, the rendezvous, loading, training and saving."""
    return Spent(tuple(1000 * s for s in (*seconds, 0, 0, 0, 0, 0, 0)[:6]), doing)


@pytest.mark.parametrize(
    ("spent", "done", "cut", "expected"),
    [
        pytest.param(Spent(), False, 100, {START: 100}, id="nothing is known"),
        pytest.param(
            reported(1, 5, doing=Doing.IMPORTS),
            False,
            100,
            {START: 1, IMPORTS: 99},
            id="it continues",
        ),
        pytest.param(
            reported(1, 5, 2, 10, 42, 20, doing=Doing.TRAINING),
            *(False, 100),
            {START: 1, IMPORTS: 5, RENDEZVOUS: 2, LOADING: 10, TRAINING: 62, SAVING: 20},
            id="trains and saves",
        ),
        pytest.param(
            reported(1, 5, 2, 10, 42, doing=Doing.TRAINING),
            *(False, 90),
            {START: 1, IMPORTS: 5, RENDEZVOUS: 2, LOADING: 10, TRAINING: 72, DETECTION: 10},
            id="a failure that is detected later",
        ),
        pytest.param(
            reported(1, 5, 2, 10, 62, doing=Doing.NOTHING),
            *(False, 90),
            {START: 1, IMPORTS: 5, RENDEZVOUS: 2, LOADING: 10, TRAINING: 62, DETECTION: 20},
            id="its workers were stopped first",
        ),
        pytest.param(
            reported(1, 5, 2, 10, 62, doing=Doing.NOTHING),
            *(True, 90),
            {START: 1, IMPORTS: 5, RENDEZVOUS: 2, LOADING: 10, TRAINING: 62, END: 20},
            id="its workers were done",
        ),
        pytest.param(
            reported(1, 5, 2, 10, 102, doing=Doing.NOTHING),
            *(False, 90),
            {START: 1, IMPORTS: 5, RENDEZVOUS: 2, LOADING: 10, TRAINING: 72, DETECTION: 10},
            id="they trained on after the end of the round",
        ),
        pytest.param(
            reported(1, 49, doing=Doing.IMPORTS),
            *(False, 20),
            {START: 1, IMPORTS: 19, DETECTION: 80},
            id="wrong from early on",
        ),
    ],
)
def test_a_round_of_100_seconds(spent, done, cut, expected):
    found = split(RoundPart(spent, 1.0, done=done), 100.0, cut)
    assert {c: s for c, s in found.items() if s} == pytest.approx(expected)
    assert sum(found.values()) == pytest.approx(100.0)


def test_of_workers_that_end_apart_the_first_have_come_to_their_end():
    """One of four workers has trained for 30 s and ended; the round is over after 90 s, which is
    seen after 100.
    """
    spent = reported(0, 10, 0, 0, 30 // 4, doing=Doing.TRAINING)
    found = split(RoundPart(spent, 1.0, left=(40.0,), workers=4), 100.0, 90.0)
    assert {c: s for c, s in found.items() if s} == pytest.approx(
        {IMPORTS: 10, TRAINING: (3 * 80 + 30) / 4, END: 60 / 4, DETECTION: 3 * 10 / 4}
    )
    assert sum(found.values()) == pytest.approx(100.0)


def test_others_wait_for_the_one_that_saves():
    saves = RoundPart(reported(0, 10, 0, 0, 70, 20, doing=Doing.TRAINING), 4.0)
    waits = RoundPart(reported(0, 10, 0, 0, 90, 0, doing=Doing.TRAINING), 4.0)
    found = together([saves, waits], 100.0, 100.0)
    assert found.spent == pytest.approx({IMPORTS: 80, TRAINING: 560, SAVING: 160})
    assert found.trained == (10.0, 100.0)


def test_of_an_agent_that_is_lost_it_is_taken_that_it_did_as_the_others():
    known = RoundPart(reported(0, 10, 0, 0, 90, doing=Doing.TRAINING), 4.0)
    found = together([known, RoundPart(Spent(), 4.0)], 100.0, 100.0)
    assert found.spent == pytest.approx({IMPORTS: 80, TRAINING: 720})


def test_an_agent_without_seats_is_no_measure_for_the_others():
    """The agents with GPUs have not reported yet."""
    without = RoundPart(reported(0, 10, 0, 0, 90, doing=Doing.TRAINING), 0.0)
    found = together([without, RoundPart(Spent(), 4.0)], 100.0, 100.0)
    assert found.spent == pytest.approx({START: 400})


@pytest.mark.parametrize(
    ("agents", "seats"),
    [
        pytest.param([Holder(0, (), 2), Holder(1, (), 4)], [2, 4], id="workers"),
        pytest.param([Holder(0, ("a", "b"), 2), Holder(1, ("c",), 1)], [2, 1], id="GPUs"),
        pytest.param([Holder(0, ("a", "b"), 1)] * 2, [1, 1], id="GPUs that two agents see"),
        pytest.param([Holder(0, ("a", "b"), 8)], [2], id="GPUs that workers share"),
        pytest.param([Holder(0, (), 4), Holder(1)], [4, 4], id="one was never heard"),
        pytest.param(
            [*[Holder(0, ("a", "b"), 1)] * 2, Holder(0)], [1, 1, 0], id="it shares those known"
        ),
    ],
)
def test_seats(agents, seats):
    assert seats_of(agents) == seats
