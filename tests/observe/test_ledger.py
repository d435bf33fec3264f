"""The ledger of a launch, by the facts that its heads have recorded."""

from __future__ import annotations

import itertools

import pytest

from hpclaunch.core.protocol import host_lists
from hpclaunch.core.protocol.facts import (
    Category,
    EndReason,
    HeadChanged,
    JobEnded,
    NodesAllocated,
    RoundBegan,
    RoundEnded,
    RoundShares,
    SeatUse,
)
from hpclaunch.core.protocol.model import Origin, Verdict
from hpclaunch.observe.job_report import report
from hpclaunch.observe.job_report_text import text
from hpclaunch.observe.launches import account
from hpclaunch.observe.ledger import MOST_ENDS, MOST_ENTRIES, Ledger, ledger_of

TRAINING, REDONE, IMPORTS = Category.TRAINING, Category.REDONE, Category.IMPORTS
DETECTION, RESTART, SPARE = Category.DETECTION, Category.RESTART, Category.SPARE
UNKNOWN, END, WAITING = Category.UNKNOWN, Category.END, Category.WAITING
DONE = Verdict(0, "all workers ended with 0", Origin.DONE)


def no_time(_at, _form):
    return ""


def begins(at, number=0, *, term=0, age=None, saves=False):
    """A round of two seats."""
    checkpoint = "" if age is None else "saved"
    began = RoundBegan(
        *(number, "n1", 1, 2, (), (), False, (), checkpoint, "", (), "", 1),
        saves=saves or age is not None,
        age=age,
    )
    return [(at, began), (at, SeatUse(term, {UNKNOWN: 2.0}, number))]


def shares(lasted, imports=0.0):
    """Return the shares of a round with two seats that lasted so many seconds."""
    spent = {IMPORTS: 2 * imports, TRAINING: 2 * (lasted - imports)}
    return RoundShares(lasted, spent, (imports, lasted))


def end(number, lasted, reason=EndReason.FAILURE):
    return RoundEnded(number, 0.0, 0.0, (reason,), shares=shares(lasted))


def ends(at, number, lasted, *, term=0, then=RESTART):
    return [(at, end(number, lasted)), (at, SeatUse(term, {then: 2.0}))]


def takes_over(at, ended=None, *, heard=0.0, term=1):
    return [(at, HeadChanged("n1", "n2", term, heard, ended)), (at, SeatUse(term, {RESTART: 2.0}))]


def over(at, term=0):
    """All is done. The head leaves two seconds later."""
    after = SeatUse(term, {END: 2.0})
    return [(at, JobEnded(0, DONE)), (at, after), (at + 2.0, after)]


def launch_of(*runs):
    return ledger_of(runs).launch("1.0")


def spent(launch):
    return account([launch]).spent


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        pytest.param(
            [[*begins(0), *ends(90, 0, 90), *begins(100, 1), *ends(150, 1, 50, then=END)]],
            {TRAINING: 2 * 140, RESTART: 2 * 10},
            id="two rounds",
        ),
        pytest.param(
            [[*begins(0), (90, SeatUse(0, {UNKNOWN: 2.0}, 0))], takes_over(100, end(0, 100))],
            {TRAINING: 2 * 100},
            id="the next head knows the round that it has ended",
        ),
        pytest.param(
            [
                [*begins(0), *ends(90, 0, 90)],
                [*takes_over(97, end(0, 97), heard=-2.0), (99, SeatUse(1, {END: 2.0}))],
            ],
            {TRAINING: 2 * 90, RESTART: 2 * 7, DETECTION: 2 * 2},
            id="but the last head has seen its end",
        ),
        pytest.param(
            [[*begins(0), *ends(90, 0, 90)], takes_over(110, heard=-10.0)],
            {TRAINING: 2 * 90, RESTART: 2 * 10, DETECTION: 2 * 10},
            id="nobody led for a while",
        ),
        pytest.param(
            [
                begins(1),
                [(41, SeatUse(0, {WAITING: 2.0})), (46, SeatUse(0, {WAITING: 2.0}))],
                takes_over(101, end(0, 100)),
            ],
            {TRAINING: 2 * 100},
            id="an agent that was started again led nobody",
        ),
        pytest.param(
            [
                [*begins(0), *ends(200, 0, 200)],
                [*takes_over(100, end(0, 100)), *begins(101, 2, term=1, age=5.0)],
                [*takes_over(151, end(2, 50), term=2)],
            ],
            {TRAINING: 2 * 146, REDONE: 2 * 4, RESTART: 2 * 1},
            id="a head that was cut off continues for a while",
        ),
        pytest.param(
            [
                [
                    *begins(0),
                    (80, SeatUse(0, {RESTART: 2.0}, last=end(0, 80, EndReason.ASKED))),
                    (85, SeatUse(0, {RESTART: 2.0})),
                ],
                takes_over(100, end(0, 100, EndReason.LOSS), heard=-5.0),
            ],
            {TRAINING: 2 * 80, RESTART: 2 * 15, DETECTION: 2 * 5},
            id="the last head was ending it",
        ),
        pytest.param(
            [takes_over(100, end(0, 100)), [(110, SeatUse(1, {RESTART: 2.0}))]],
            {RESTART: 2 * 10},
            id="a head whose facts cannot be read",
        ),
        pytest.param(
            [
                [(0, SeatUse(0, {WAITING: 2.0})), (9, SeatUse(0, {WAITING: 2.0}))],
                takes_over(60, end(0, 50)),
            ],
            {WAITING: 2 * 10, TRAINING: 2 * 50},
            id="the begin of the round was not written",
        ),
        pytest.param(
            [
                [
                    *begins(0),
                    (30, SeatUse(0, {UNKNOWN: 2.0}, 0, end(0, 30))),
                    (60, SeatUse(0, {UNKNOWN: 2.0}, 0, end(0, 60))),
                ]
            ],
            {TRAINING: 2 * 60},
            id="it was killed with its workers",
        ),
        pytest.param(
            [
                [
                    (0, SeatUse(0, {UNKNOWN: 2.0, WAITING: 1.0}, 0)),
                    (30, SeatUse(0, {UNKNOWN: 2.0, SPARE: 1.0}, 0)),
                    *ends(60, 0, 60, then=END),
                    *over(60),
                ]
            ],
            {TRAINING: 2 * 60, WAITING: 30, SPARE: 30, END: 2 * 2},
            id="a node comes while others train",
        ),
        pytest.param(
            [
                begins(0),
                [(40, SeatUse(0, {WAITING: 2.0})), *begins(50), *ends(60, 0, 10, then=END)],
            ],
            {UNKNOWN: 2 * 40, WAITING: 2 * 10, TRAINING: 2 * 10},
            id="a single head that was killed and started again",
        ),
    ],
)
def test_no_second_is_lost_or_there_twice(runs, expected):
    launch = launch_of(*runs)
    assert all(one.end == other.begin for one, other in itertools.pairwise(launch.entries))
    assert spent(launch) == pytest.approx(expected)


def test_a_round_that_runs_is_known_until_now():
    ledger = ledger_of([begins(0)])
    assert spent(ledger.launch("1.0", SeatUse(0, {UNKNOWN: 2.0}, 0, end(0, 50)), 50)) == {
        TRAINING: 100
    }
    later = ledger.launch("1.0", SeatUse(0, {UNKNOWN: 2.0}, 0, end(0, 60)), 60)
    assert (later.until, later.ends) == (60, ())


def test_the_end_of_a_round_is_there_while_its_workers_are_stopped():
    stopping = SeatUse(0, {RESTART: 2.0}, last=end(0, 80))
    launch = ledger_of([begins(0)]).launch("1.0", stopping, 80)
    assert [each.at for each in launch.ends] == [80]


def test_a_round_rewinds_those_before_it():
    launch = launch_of(
        [*begins(0), *ends(20, 0, 20), *begins(20, 1, age=5.0), *ends(30, 1, 10, then=END)]
    )
    assert spent(launch) == pytest.approx({TRAINING: 2 * 25, REDONE: 2 * 5})


def test_a_round_that_begins_without_a_checkpoint_rewinds_all():
    first = [*begins(1), *ends(21, 0, 20)]
    launch = launch_of([*first, *begins(21, 1, saves=True), *ends(31, 1, 10, then=END)])
    assert spent(launch) == pytest.approx({TRAINING: 2 * 10, REDONE: 2 * 20})


def test_what_is_between_two_rounds_is_one_entry():
    """With the seats that are known by then."""
    waits = [(0, SeatUse(0, {WAITING: 1.0})), (1, SeatUse(0, {WAITING: 2.0}))]
    launch = launch_of([*waits, *begins(3), *ends(9, 0, 6)])
    assert [(each.begin, each.end) for each in launch.entries] == [(0, 3), (3, 9)]
    assert launch.entries[0].spent == {WAITING: 6.0}


def test_a_launch_is_over_when_the_head_that_leads_says_so():
    cut_off = [*begins(0), *ends(10, 0, 10, then=END), *over(10)]
    assert launch_of(cut_off).verdict == DONE
    assert launch_of(cut_off, takes_over(30)).verdict is None


def test_a_launch_continues_with_a_round_that_begins_after_its_end():
    assert (
        launch_of([*begins(0), *ends(10, 0, 10, then=END), *over(10), *begins(20)]).verdict is None
    )


def test_a_clock_that_steps_back_changes_no_order():
    run = [*begins(0), *ends(100, 0, 100), *begins(98, 1), *ends(97, 1, 0), *begins(97, 2)]
    launch = launch_of([*run, *ends(150, 2, 50, then=END)])
    assert [each.round for each in launch.ends] == [0, 1, 2]
    assert spent(launch) == pytest.approx({TRAINING: 2 * 150})


def test_a_clock_that_is_ahead_for_a_while_books_no_years():
    run = [*begins(0), *ends(1e9, 0, 100), *begins(102, 1), *ends(150, 1, 48, then=END)]
    assert spent(launch_of(run)) == pytest.approx({TRAINING: 2 * 150})


def test_of_a_head_before_one_whose_clock_is_behind_nothing_is_lost():
    first = [*begins(1000), *ends(1100, 0, 100), *begins(1100, 1)]
    first.append((1190, SeatUse(0, {UNKNOWN: 2.0}, 1)))
    second = [*takes_over(500, end(1, 90)), *begins(510, 2, term=1), *ends(560, 2, 50, term=1)]
    launch = launch_of(first, second)
    assert (launch.begin, launch.until) == (1000, 1250)
    assert [each.round for each in launch.ends] == [0, 1, 2]
    assert spent(launch) == pytest.approx({TRAINING: 2 * 240, RESTART: 2 * 10})


def test_since_when_the_job_has_its_nodes():
    run = [*begins(20.25), (21.4, NodesAllocated(-11.4001)), *ends(30.25, 0, 10)]
    assert launch_of(run).allocated == 10.0


@pytest.mark.parametrize("at", [-1.0, 1e11, 1e300])
def test_a_fact_of_no_possible_time_is_damaged(at):
    assert launch_of([*begins(at), *ends(at, 0, 10)]) is None
    fine = [*begins(0), *ends(10, 0, 10)]
    assert launch_of([*fine, (20, SeatUse(0, {END: 1e300}))]) == launch_of(fine)


@pytest.mark.parametrize(
    "fact",
    [
        SeatUse(0, {END: -2.0}),
        RoundEnded(0, 0.0, 0.0, (), shares=RoundShares(-1.0, {TRAINING: 2.0})),
        RoundEnded(0, 0.0, 0.0, (), shares=RoundShares(1.0, {TRAINING: -2.0})),
        SeatUse(0, {END: 2.0}, last=RoundEnded(0, 0.0, 0.0, (), shares=RoundShares(-1.0, {}))),
    ],
)
def test_a_fact_of_less_than_nothing_is_damaged(fact):
    fine = [*begins(0), *ends(10, 0, 10)]
    assert launch_of([*fine, (20, fact)]) == launch_of(fine)


@pytest.mark.parametrize("lasted", [0.0, 5e-324])
def test_a_round_of_no_time_at_all(lasted):
    """Nothing is divided by so little."""
    tiny = RoundEnded(
        0, 0.0, 0.0, (EndReason.LOSS,), shares=RoundShares(lasted, {TRAINING: lasted})
    )
    waits = [(0, SeatUse(0, {WAITING: 2.0})), (10, SeatUse(0, {WAITING: 2.0}))]
    assert spent(launch_of(waits, takes_over(10, tiny))) == {WAITING: 20}
    assert spent(launch_of([*begins(0), (10, tiny), (10, SeatUse(0, {END: 2.0}))])) == {UNKNOWN: 20}


def test_a_ledger_is_of_bounded_size_and_loses_no_second():
    ledger, rounds = Ledger(), 3 * MOST_ENTRIES
    for number in range(rounds):
        at = 10.0 * number
        for when, fact in [*begins(at, number, age=0.0), *ends(at + 6.0, number, 6.0)]:
            ledger.note(fact, when)
    launch = ledger.launch("1.0", SeatUse(0, {END: 2.0}), 10.0 * rounds)
    assert len(launch.entries) <= MOST_ENTRIES
    assert sum(spent(launch).values()) == pytest.approx(rounds * 10.0 * 2)
    assert len(launch.ends) == MOST_ENDS
    assert launch.ends[0].round == 0  # the first one stays, and the last ones
    assert launch.ends[-1].round == rounds - 1
    found = report([launch])
    assert found.rounds == rounds
    assert found.ends_left_out == rounds - MOST_ENDS
    assert f"  and {rounds - 3} more: --json has {MOST_ENDS} of all" in text(found, "logs", no_time)


def test_all_nodes_are_known():
    names = [f"n{i}" for i in range(200)]
    use = SeatUse(0, {TRAINING: 200.0}, nodes={TRAINING: host_lists.written(names)})
    launch = launch_of([(0, use), (9, use)])
    assert report([launch]).nodes == tuple(names)
