"""Stories of one agent whose fork server or store process ends, at any moment."""

from __future__ import annotations

import pytest
from story import TERM, a_member, a_part, deeds, end, feed, idle, reports, run, running, seen, stop

from hpclaunch.core.protocol.effects import KillWorkers, OpenStore, StartWorkers, StopWorkers
from hpclaunch.core.protocol.events import (
    ForkServerReplaced,
    Started,
    StoreEnded,
    StoreListening,
    Tick,
    WorkerExited,
    WorkersGone,
)
from hpclaunch.core.protocol.model import NO_RANK, Culprit, Doing, Phase, Spent

REPLACED = ForkServerReplaced()
SERVER, STORE, WORKER = Culprit.FORK_SERVER, Culprit.STORE, Culprit.WORKER


def exits(report):
    return [(e.rank, e.code, e.signal, e.stopped, e.culprit) for e in report.exits]


def test_its_workers_are_a_failed_round():
    """One failure stands for all of them."""
    member = running()
    effects = feed(member, 2.0, REPLACED)
    assert deeds(effects) == [OpenStore()]
    (report,) = reports(effects)
    assert (report.phase, report.round) == (Phase.PREPARING, 0)
    assert exits(report) == [(2, 137, 9, False, SERVER), (3, 137, 9, True, SERVER)]
    assert deeds(feed(member, 2.1, stop(0, lost=True))) == []
    (report,) = reports(feed(member, 2.2, StoreListening(4002)))
    assert (report.phase, report.store_port) == (Phase.IDLE, 4002)
    order = run(1)
    assert deeds(feed(member, 2.3, order)) == [StartWorkers(order.message.assignment)]
    assert deeds(feed(member, 60.0, Tick())) == [], "nothing of the lost round is still due"


def test_a_worker_that_had_ended_well_is_not_lost():
    member = running()
    feed(member, 2.0, WorkerExited(2, 0, 0))
    (report,) = reports(feed(member, 2.1, REPLACED))
    assert exits(report) == [(2, 0, 0, False, WORKER), (3, 137, 9, False, SERVER)]


def test_all_workers_had_ended_well():
    """Only leftover processes were still there. The workers had trained until they ended."""
    member = running()
    trains = Doing.TRAINING - 1  # as a fork server has it
    feed(member, 2.0, seen(spent=(100, 200, 300, 300, 0), doing=trains))
    feed(member, 3.0, WorkerExited(2, 0, 0))
    feed(member, 4.0, WorkerExited(3, 0, 0))
    (report,) = reports(feed(member, 5.0, REPLACED))
    assert report.phase is Phase.DONE
    assert not any(e.code for e in report.exits)
    assert report.spent == Spent((100, 100, 200, 300, 1800, 0), Doing.NOTHING)


def test_while_its_workers_are_stopped():
    """The failure that ended the round is another."""
    member = running(grace=20.0)
    assert deeds(feed(member, 2.0, WorkerExited(2, 1, 0))) == [StopWorkers()]
    effects = feed(member, 2.1, REPLACED)
    assert deeds(effects) == [OpenStore()]
    assert exits(reports(effects)[-1]) == [(2, 1, 0, False, WORKER), (3, 137, 9, True, SERVER)]
    assert deeds(feed(member, 22.0, Tick())) == []


def test_while_its_workers_survive_sigkill():
    member = running(grace=20.0, unkillable=30.0)
    feed(member, 2.0, stop(0))
    assert deeds(feed(member, 22.0, Tick())) == [KillWorkers()]
    feed(member, 52.0, Tick())
    assert member.phase is Phase.STUCK
    (report,) = reports(feed(member, 53.0, REPLACED))
    assert report.phase is Phase.PREPARING
    assert "workers survive SIGKILL" in report.unfit


def test_while_its_workers_are_stopped_for_the_end():
    member = running()
    feed(member, 2.0, end(143, "ended by SIGTERM on n0"))
    assert deeds(feed(member, 2.1, REPLACED)) == []
    assert (member.phase, member.verdict.code) == (Phase.ENDED, 143)


def test_between_two_rounds():
    """The port that the head knows is dead."""
    member = idle()
    effects = feed(member, 1.0, REPLACED)
    assert deeds(effects) == [OpenStore()]
    assert reports(effects)[-1].phase is Phase.PREPARING
    assert deeds(feed(member, 1.1, run(0))) == [], "not ready: the head will say so again"
    (report,) = reports(feed(member, 1.2, StoreListening(4002)))
    assert (report.phase, report.store_port, report.round) == (Phase.IDLE, 4002, -1)
    assert deeds(feed(member, 1.3, run(0))) != []


def test_before_it_has_opened_a_store():
    member = a_member()
    feed(member, 0.0, Started())
    for now in (0.1, 0.2):
        assert deeds(feed(member, now, REPLACED)) == [OpenStore()]
    feed(member, 0.3, StoreListening(4003))
    assert member.phase is Phase.IDLE


def test_after_its_workers_have_ended_well():
    """The workers are done, even if workers elsewhere still need the store that it held."""
    member = running()
    feed(member, 2.0, WorkerExited(2, 0, 0), WorkerExited(3, 0, 0), WorkersGone())
    assert deeds(feed(member, 2.5, REPLACED)) == []
    assert member.phase is Phase.DONE
    assert deeds(feed(member, 3.0, stop(0, lost=True))) == [OpenStore()]


@pytest.mark.parametrize("asked", [TERM, stop(0, serial=900_000)], ids=["signal", "stop"])
def test_a_round_that_was_not_lost_before_is_not_lost_by_it(asked):
    member = running()
    feed(member, 2.0, asked)
    (report,) = reports(feed(member, 2.1, REPLACED))
    assert [e.stopped for e in report.exits] == [True, True]


# The store process

ENDED = StoreEnded(4001, 137, 9)


def holding():
    """A member on whose node the ranks meet."""
    member = idle()
    part = a_part(0, hosts_store=True, store_port=4001)
    assert deeds(feed(member, 1.0, run(0, assignment=part))) == [StartWorkers(part)]
    return member


def test_a_store_that_ends_is_a_failed_round():
    """On other nodes as well: all ranks meet there."""
    effects = feed(holding(), 2.0, ENDED)
    assert deeds(effects) == [StopWorkers()]
    (report,) = reports(effects)
    assert (report.phase, exits(report)) == (Phase.STOPPING, [(NO_RANK, 137, 9, False, STORE)])


def test_a_store_that_ends_when_the_workers_here_are_done():
    """Others may not be."""
    member = holding()
    feed(member, 2.0, WorkerExited(2, 0, 0), WorkerExited(3, 0, 0), WorkersGone())
    effects = feed(member, 2.1, ENDED)
    assert deeds(effects) == []
    (report,) = reports(effects)
    assert (report.phase, exits(report)[-1]) == (Phase.DONE, (NO_RANK, 137, 9, False, STORE))
    assert deeds(feed(member, 2.2, stop(0, lost=True))) == [OpenStore()]


def test_a_store_of_an_earlier_round_that_ends():
    """The report of its end crossed the order for the next round."""
    member = holding()
    assert deeds(feed(member, 2.0, StoreEnded(4000, 137, 9))) == []
    assert member.phase is Phase.RUNNING
