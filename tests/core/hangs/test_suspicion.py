"""The silence after which the workers of an agent are suspected of a hang."""

from __future__ import annotations

import pytest
from story import seen

from hpclaunch.core.hangs.suspicion import Suspicion
from hpclaunch.core.protocol.timing import LEARNED, Timing


def after(*events, hang=LEARNED):
    suspicion = Suspicion(Timing(hang=hang))
    for event in events:
        suspicion.saw(event)
    return suspicion.report()


def test_nothing_is_known_before_the_first_look():
    assert after() is None


@pytest.mark.parametrize(
    ("what", "limit"),
    [
        pytest.param([seen(gap=0.1)], 10, id="quick steps"),
        pytest.param([seen(gap=4.0)], 20, id="five times the longest"),
        pytest.param([seen(gap=4.0), seen(gap=0.1)], 20, id="of those lately"),
        pytest.param([seen(gap=4.0), *[seen(gap=0.1)] * 64], 10, id="and not of long ago"),
        pytest.param([seen(steps=(4, 100))], 600, id="before all have made five steps"),
        pytest.param([seen(steps=(4, 100), patient=True)], 6000, id="saving before that"),
        pytest.param([seen(steps=(0, 0), trains=False)], 0, id="nothing to learn from"),
        pytest.param([seen(steps=(0, 0), trains=False, meets=True)], 600, id="it meets others"),
        pytest.param([seen(), seen(trains=False)], 0, id="the training is over"),
        pytest.param([seen(gap=9.0), seen(steps=(5, 5))], 10, id="another program has begun"),
        pytest.param([seen(patient=True)], 100, id="saving, or evaluating"),
        pytest.param([seen(traced=True)], 0, id="in a debugger"),
    ],
)
def test_what_is_learned(what, limit):
    assert after(*what).limit == limit


@pytest.mark.parametrize(
    ("hang", "what", "limit"),
    [
        (30.0, seen(gap=20.0), 30),
        (30.0, seen(steps=(0, 0), trains=False), 30),
        (30.0, seen(patient=True), 300),
        (30.0, seen(traced=True), 0),
        (0.0, seen(), 0),
    ],
)
def test_what_the_user_sets(hang, what, limit):
    assert after(what, hang=hang).limit == limit


def test_workers_are_suspected_once_they_are_still_for_so_long():
    assert not after(seen(still=9.9)).suspected
    assert after(seen(still=10.0)).suspected
    assert not after(seen(still=1e9, trains=False)).suspected


def test_the_agent_awaits_the_stillness_after_which_somebody_decides():
    suspicion = Suspicion(Timing())
    assert suspicion.awaited == ()
    suspicion.saw(seen(gap=4.0))
    assert suspicion.awaited == (20, 200)
    suspicion.saw(seen(patient=True))
    assert suspicion.awaited == (200, 2000)
    suspicion.saw(seen(trains=False))
    assert suspicion.awaited == ()


def test_workers_that_are_held_are_not_suspected():
    suspicion = Suspicion(Timing())
    suspicion.saw(seen(still=9.0))
    suspicion.forget()
    assert suspicion.report() is None


def test_workers_that_trained_in_an_earlier_round_are_about_to():
    suspicion = Suspicion(Timing(), trained=True)
    suspicion.saw(seen(steps=(0, 0), trains=False))
    assert suspicion.report().limit == 600


def test_the_steps_are_named_once_if_all_have_made_as_many():
    assert after(seen(steps=(7, 7, 7))).steps == (7,)
    assert after(seen(steps=(7, 8, 7))).steps == (7, 8, 7)
