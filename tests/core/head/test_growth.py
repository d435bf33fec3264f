"""The return of a node: taken in now, after the next checkpoint, or with a restart."""

from __future__ import annotations

import pytest
from story import a_job, feed, orders, report

from hpclaunch.core.head.head import Head
from hpclaunch.core.protocol.effects import ChooseCheckpoint, Record
from hpclaunch.core.protocol.events import (
    AgentGone,
    CheckpointChosen,
    PeerClosed,
    SearchFailed,
    Started,
    Tick,
)
from hpclaunch.core.protocol.facts import NodesJoin
from hpclaunch.core.protocol.model import Grow, Origin, Phase, Trouble, WorkerExit
from hpclaunch.core.protocol.stages import Stage

IDLE, RUNNING = Phase.IDLE, Phase.RUNNING
SAID = Record(NodesJoin(("n2",)))


def smaller(grow, **settings):
    """Round 1 runs without n2, which has come back since."""
    head = Head(a_job("n0 n1 n2", fewest=2, grow=grow, beat=0.5, loss=3.0, **settings))
    feed(head, 0.0, Started(), *(report(i, IDLE) for i in range(3)), CheckpointChosen("/c/1"))
    feed(head, 0.1, *(report(i, RUNNING, 0) for i in range(3)))
    feed(head, 0.2, PeerClosed(2), AgentGone(2))
    feed(head, 0.5, report(0, IDLE, 0), report(1, IDLE, 0), Tick(), CheckpointChosen("/c/1"))
    assert (head.stage, head.state.round) == (Stage.RUNNING, 1)
    feed(head, 0.6, *(report(i, RUNNING, 1) for i in range(2)), report(2, IDLE, 0))
    return head


def beat(head, now):
    return feed(head, now, *(report(i, RUNNING, 1) for i in range(2)), report(2, IDLE, 0), Tick())


def test_now():
    head = smaller(Grow.NOW)
    effects = beat(head, 1.1)
    assert SAID in effects
    assert (0, "stop", 1) in orders(effects)
    feed(head, 1.2, *(report(i, IDLE, 1) for i in range(3)))
    effects = feed(head, 1.3, CheckpointChosen("/c/1"))
    assert {to for to, goal, _ in orders(effects) if goal == "run"} == {0, 1, 2}
    assert head.state.budget.total == 0


def test_after_the_next_checkpoint():
    head = smaller(Grow.CHECKPOINT)
    assert ChooseCheckpoint() in beat(head, 1.1)
    feed(head, 1.2, CheckpointChosen("/c/1"))
    assert ChooseCheckpoint() not in beat(head, 2.1)  # it looks now and then
    assert ChooseCheckpoint() in beat(head, 6.2)
    feed(head, 6.3, CheckpointChosen("/c/2"))
    assert SAID in beat(head, 7.0)


def test_a_node_that_was_lost_while_it_waited_waits_for_a_save_after_its_return():
    head = smaller(Grow.CHECKPOINT)
    beat(head, 1.1)
    feed(head, 1.2, CheckpointChosen("/c/1"))
    feed(head, 1.3, PeerClosed(2), AgentGone(2))
    for now in range(2, 1001):
        feed(head, float(now), *(report(i, RUNNING, 1) for i in range(2)), Tick())
    feed(head, 1000.1, report(2, IDLE, 0))
    assert ChooseCheckpoint() in beat(head, 1001.0)
    feed(head, 1001.1, CheckpointChosen("/c/2", age=600.0))
    assert SAID not in beat(head, 1002.0)
    assert ChooseCheckpoint() in beat(head, 1006.2)
    feed(head, 1006.3, CheckpointChosen("/c/3", age=1.0))
    assert SAID in beat(head, 1007.0)


def test_a_search_that_takes_long_is_not_begun_again():
    head = smaller(Grow.CHECKPOINT)
    assert ChooseCheckpoint() in beat(head, 1.1)
    for now in range(2, 20):
        assert ChooseCheckpoint() not in beat(head, float(now))
    feed(head, 19.5, CheckpointChosen("/c/1"))
    assert ChooseCheckpoint() not in beat(head, 20.0)
    for now in range(21, 24):
        beat(head, float(now))
    assert ChooseCheckpoint() in beat(head, 24.5)


def test_a_search_that_failed_is_begun_again():
    head = smaller(Grow.CHECKPOINT)
    assert ChooseCheckpoint() in beat(head, 1.1)
    feed(head, 1.2, SearchFailed(Trouble(Origin.TROUBLE, "cannot look for checkpoints")))
    assert ChooseCheckpoint() not in beat(head, 2.1)
    assert ChooseCheckpoint() in beat(head, 6.2)


@pytest.mark.parametrize(("grow", "most"), [(Grow.NEVER, 0), (Grow.NOW, 2)])
def test_not_at_all(grow, most):
    head = smaller(grow) if not most else None
    if head is None:  # n2 is a spare, and there is no room for it
        head = Head(a_job("n0 n1 n2", most=most, grow=grow, beat=0.5, loss=3.0))
        feed(head, 0.0, Started(), *(report(i, IDLE) for i in range(3)), CheckpointChosen(""))
    effects = beat(head, 1.1)
    assert SAID not in effects
    assert head.stage is Stage.RUNNING


def test_a_round_that_is_about_to_end():
    """The last checkpoint is there, and one worker has finished."""
    head = smaller(Grow.NOW)
    finished = report(0, RUNNING, 1, exits=(WorkerExit(0, 0, 0, 0.1, stopped=False, tail=""),))
    effects = feed(head, 1.1, finished, report(1, RUNNING, 1), report(2, IDLE, 0), Tick())
    assert SAID not in effects
    assert head.stage is Stage.RUNNING


def test_of_two_nodes_that_come_back_the_one_with_the_first_task_joins():
    """Slurm has not numbered the tasks in the order of the nodes."""

    def comes(index, *args):
        return report(index, *args, task=(0, 1, 3, 2)[index])

    head = Head(a_job("n0 n1 n2 n3", fewest=2, most=3, grow=Grow.NOW, beat=0.5, loss=3.0))
    feed(head, 0.0, Started(), *(comes(i, IDLE) for i in range(4)), CheckpointChosen(""))
    feed(head, 0.1, PeerClosed(2), AgentGone(2), PeerClosed(3), AgentGone(3))
    feed(head, 0.5, comes(0, IDLE, 0), comes(1, IDLE, 0), Tick(), CheckpointChosen(""))
    feed(head, 0.6, comes(0, RUNNING, 1), comes(1, RUNNING, 1), comes(2, IDLE, 0))
    feed(head, 0.6, comes(3, IDLE, 0))
    assert Record(NodesJoin(("n3",))) in feed(head, 1.2, Tick())
    feed(head, 1.3, comes(0, IDLE, 1), comes(1, IDLE, 1))
    feed(head, 1.4, CheckpointChosen(""))
    assert [p.place.index for p in head.state.roster if p.assignment] == [0, 1, 3]
