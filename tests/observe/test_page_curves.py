"""The curves of figures over time."""

from __future__ import annotations

import pytest

from hpclaunch.core.member.moments import AgentHistory, AgentMoment, WorkersMoment
from hpclaunch.core.protocol.facts import Category
from hpclaunch.observe import page_curves as curves
from hpclaunch.observe.ledger_entries import LedgerEntry
from hpclaunch.observe.page_lanes import TimeAxis

TRAINS, OVER = (0, 0, 0, 0, 0, 0, 4), (0, 0, 0, 0, 0, 0, 6)


def noted(*steps, round=0, spent=TRAINS, memory=0, first=0):  # noqa: A002 - the field's name
    return [
        AgentMoment(at, round, WorkersMoment(first, 2, at, spent, made, at, 0, memory, memory))
        for at, made in steps
    ]


def history(*moments):
    return AgentHistory("71.0", 0, "n1", tuple(moments))


@pytest.mark.parametrize(
    ("steps", "rates"),
    [
        pytest.param([], [], id="none"),
        pytest.param([(5, 0), (10, 20)], [], id="the first step is a begin"),
        pytest.param([(5, 0), (10, 20), (15, 30)], [(10, 2.0), (15, 2.0)], id="since then"),
        pytest.param(
            [(0, 1), (5, 11), (10, 21), (15, 31), (20, 61)],
            [(0, 2.0), (5, 2.0), (10, 2.0), (15, 2.0), (20, 10 / 3)],
            id="over the last seconds",
        ),
        pytest.param(
            [(100, 10), (400, 610), (700, 610)],
            [(100, 2.0), (400, 2.0), (700, 0.0)],
            id="far apart",
        ),
    ],
)
def test_the_rate_of_steps(steps, rates):
    assert curves.step_rates([history(*noted(*steps))]) == ([rates] if rates else [])


def test_each_round_is_a_piece_of_its_own_and_ends_with_its_workers():
    moments = [
        *noted((5, 10), (10, 20)),
        *noted((15, 20), spent=OVER),
        *noted((20, 1), (30, 11), round=1),
    ]
    assert curves.step_rates([history(*moments)]) == [[(5, 2.0), (10, 2.0)], [(20, 1.0), (30, 1.0)]]


def test_workers_were_seen_some_time_before():
    """Steps that two moments report are counted once."""
    made = [(10.0, 5, 4.0), (15.0, 15, 9.0), (16.0, 15, 9.0), (20.0, 25, 14.0)]
    moments = [
        AgentMoment(at, 0, WorkersMoment(0, 2, at, TRAINS, steps, seen)) for at, steps, seen in made
    ]
    assert curves.step_rates([history(*moments)]) == [[(4.0, 2.0), (9.0, 2.0), (14.0, 2.0)]]


def test_only_the_agent_of_rank_0_counts_its_steps():
    assert curves.step_rates([history(*noted((5, 10), (10, 20), first=2))]) == []


def test_losses_come_when_they_do():
    """A round imports, trains, and does the last part twice; a spare is beside it all the time."""
    spent = {
        Category.IMPORTS: 20.0,
        Category.TRAINING: 60.0,
        Category.REDONE: 20.0,
        Category.SPARE: 50.0,
    }
    entries = [LedgerEntry(0, 50, 3, spent, 0, trained=(10, 40))]
    found = curves.losses(entries, steps_seen=True)
    assert [(loss.at, loss.overhead, loss.faults, loss.idle) for loss in found] == [
        (0, 0, 0, 0),
        (10, 20, 0, 10),
        (40, 20, 0, 40),
        (50, 20, 20, 50),
    ]
    assert [round(loss.goodput, 2) for loss in found] == [0, 0, 0.5, 0.4]


def test_saves_are_a_loss_while_the_job_trains():
    spent = {Category.START: 20.0, Category.TRAINING: 60.0, Category.SAVING: 20.0}
    found = curves.losses([LedgerEntry(0, 100, 1, spent, 0, trained=(20, 100))], steps_seen=True)
    assert [(loss.at, loss.overhead) for loss in found] == [(0, 0), (20, 20), (100, 40)]


def test_without_steps_loading_is_training():
    entries = [LedgerEntry(0, 10, 1, {Category.LOADING: 10.0}, 0)]
    assert curves.losses(entries, steps_seen=False)[-1].goodput == 1.0


def test_what_agents_note_at_the_same_time_is_one_point():
    axis = TimeAxis(0.0, 100.0)
    agents = [
        history(*noted((2, 1), memory=200)),
        history(*noted((4, 1), (6, 1), memory=400)),
        history(*noted((80, 1), memory=100)),
    ]
    points = curves.gathered(agents, axis)
    assert curves.curve(points, lambda w: w.memory / w.count, curves.mean) == [
        [(5.0, pytest.approx(500 / 3))],
        [(85.0, 50.0)],
    ]
    assert curves.curve(points, lambda w: None, max) == []


def test_between_two_pieces_a_curve_is_interrupted():
    axis = TimeAxis(0.0, 10.0)
    pieces = [[(0, 0), (5, 1 / 3)], [], [(10, 2)]]
    found = ((0, 0.0), (10_000, 33.33), (10_000, None), (20_000, 200.0))
    assert curves.points(pieces, axis, 100.0) == found
    assert curves.points([], axis, 1.0) == ()


def test_of_many_points_the_extremes_stay():
    points = [(float(i), 1.0) for i in range(10_000)]
    points[5000], points[7000] = (5000.0, 9.0), (7000.0, -3.0)
    thin = curves.thinned(points)
    assert len(thin) <= curves.MOST_POINTS + 2
    assert {(5000.0, 9.0), (7000.0, -3.0), points[0], points[-1]} <= set(thin)
    assert thin == sorted(thin)
