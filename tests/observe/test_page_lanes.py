"""The activities of the job, and of each of its nodes and ranks, over time."""

from __future__ import annotations

import pytest

from hpclaunch.core.member.moments import AgentHistory, AgentMoment, WorkersMoment
from hpclaunch.core.protocol.facts import Category
from hpclaunch.observe.ledger_entries import LedgerEntry
from hpclaunch.observe.page_lanes import (
    MOST_BARS,
    MOST_LANES,
    UNITS,
    Bar,
    TimeAxis,
    agent_bars,
    job_bars,
    lanes,
    most,
    runs,
)

START, IMPORTS, LOADING = Category.START, Category.IMPORTS, Category.LOADING
TRAINING, SAVING, REDONE, END = (
    Category.TRAINING,
    Category.SAVING,
    Category.REDONE,
    Category.END,
)
SPARE, LOST, RESTART, WAITING = (
    Category.SPARE,
    Category.LOST,
    Category.RESTART,
    Category.WAITING,
)


def as_tuples(bars):
    return [(bar.begin, bar.end, bar.category) for bar in bars]


def a_moment(at, elapsed, *spent, round=0, first=0, count=2):  # noqa: A002 - the field's name
    workers = WorkersMoment(first, count, elapsed, spent, steps=0, seen=elapsed)
    return AgentMoment(at, round, workers)


def history(*moments):
    return AgentHistory("71.0", 0, "n1", moments)


def bars_of(*moments, uses=(), end=100.0, least=0.0):
    return as_tuples(agent_bars(history(*moments), uses, {0: (10.0, end)}, 100.0, least))


def test_a_round_of_the_job_goes_through_its_categories_in_order():
    spent = {TRAINING: 60.0, IMPORTS: 20.0, REDONE: 20.0, SPARE: 50.0}
    assert as_tuples(job_bars([LedgerEntry(0, 50, 3, spent, 0)])) == [
        (0, 10, IMPORTS),
        (10, 40, TRAINING),
        (40, 50, REDONE),
    ]


def test_what_happens_beside_it_is_shown_if_nothing_else_does():
    entries = [LedgerEntry(0, 10, 3, {WAITING: 30.0}), LedgerEntry(10, 20, 3, {LOST: 30.0})]
    assert as_tuples(job_bars(entries)) == [(0, 10, WAITING), (10, 20, LOST)]


def test_what_workers_do_now_lasts_until_the_end_of_the_round():
    assert bars_of(a_moment(30, 20, 1000, 4000, 0, 5000, 10_000, 0, 4)) == [
        (10, 11, START),
        (11, 15, IMPORTS),
        (15, 20, LOADING),
        (20, 100, TRAINING),
    ]


def test_workers_that_have_ended():
    assert bars_of(a_moment(30, 20, 1000, 4000, 0, 5000, 6000, 0, 6)) == [
        (10, 11, START),
        (11, 15, IMPORTS),
        (15, 20, LOADING),
        (20, 26, TRAINING),
        (26, 30, END),
    ]


def test_they_still_import():
    assert bars_of(a_moment(30, 20, 1000, 19_000, 0, 0, 0, 0, 1)) == [
        (10, 11, START),
        (11, 100, IMPORTS),
    ]


def test_saves_are_where_they_ended():
    noted = (
        a_moment(30, 20, 0, 0, 0, 0, 20_000, 0, 4),
        a_moment(40, 30, 0, 0, 0, 0, 27_000, 3000, 4),
    )
    assert bars_of(*noted, end=50.0) == [
        (10, 37, TRAINING),
        (37, 40, SAVING),
        (40, 50, TRAINING),
    ]
    assert bars_of(*noted, end=50.0, least=4.0) == [(10, 50, TRAINING)]


def test_a_node_that_is_lost_no_longer_works():
    noted = a_moment(30, 20, 0, 0, 0, 0, 20_000, 0, 4)
    uses = [(12.0, Category.UNKNOWN), (60.0, LOST)]
    assert bars_of(noted, uses=uses) == [(10, 60, TRAINING), (60, 100, LOST)]


def test_a_spare_that_takes_part_later():
    noted = a_moment(70, 10, 0, 0, 0, 0, 10_000, 0, 4)
    uses = [(10.0, SPARE), (61.0, Category.UNKNOWN)]
    assert bars_of(noted, uses=uses) == [(10, 60, SPARE), (60, 100, TRAINING)]


def test_what_most_of_them_do():
    of = [
        [Bar(0, 10, TRAINING)],
        [Bar(0, 4, IMPORTS), Bar(4, 10, TRAINING)],
        [Bar(0, 6, IMPORTS), Bar(6, 8, TRAINING)],
    ]
    assert as_tuples(most(of)) == [(0, 4, IMPORTS), (4, 10, TRAINING)]


def test_few_ranks_have_a_lane_each_and_so_has_a_spare():
    bar = Bar(0, 1, TRAINING)
    made = lanes({"n1": [bar], "n2": []}, {1: ("n1", [bar]), 0: ("n1", [bar])})
    assert [(lane.name, lane.rank) for lane in made] == [("rank 0", 0), ("rank 1", 1), ("n2", None)]


@pytest.mark.parametrize("hosts", [0, 1, 64, 1024])
def test_many_nodes_share_lanes(hosts):
    names = [f"n{i}" for i in range(hosts)]
    ranks = {rank: (names[rank // 8], [Bar(0, 1, TRAINING)]) for rank in range(8 * hosts)}
    made = lanes({name: [Bar(0, 1, TRAINING)] for name in names}, ranks if hosts > 2 else {})
    assert len(made) <= MOST_LANES
    assert sum(len(lane.hosts) for lane in made) == hosts


def test_bars_in_units_of_the_axis():
    bars = [Bar(0, 10, IMPORTS), Bar(10, 20, TRAINING), Bar(20, 40, TRAINING)]
    assert runs([bars, []], TimeAxis(0.0, 40.0)) == [
        [(IMPORTS, 0, 5000), (TRAINING, 5000, 20_000)],
        [],
    ]


def test_a_short_bar_is_seen():
    found = runs([[Bar(50.0, 50.001, RESTART)]], TimeAxis(0.0, 100.0))
    assert found == [[(RESTART, 10_000, 10_001)]]


def test_too_many_bars_become_what_takes_most_of_the_time():
    bars = [
        Bar(i + half, i + half + (0.8 if half == 0 else 0.2), SAVING if half else TRAINING)
        for i in range(4 * MOST_BARS)
        for half in (0, 0.8)
    ]
    found = runs([bars], TimeAxis(0.0, 4.0 * MOST_BARS))
    assert found == [[(TRAINING, 0, 20_000)]]


def test_places_on_the_axis():
    axis = TimeAxis(100.0, 300.0)
    assert [axis.x(at) for at in (50, 100, 200, 300, 400)] == [0, 0, UNITS // 2, UNITS, UNITS]
    assert axis.share(150) == 0.25
