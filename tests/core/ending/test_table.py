"""The table of what may end a job, row by row: a story of each origin, from notice to sequel."""

from __future__ import annotations

import pytest
from crew import Crew
from endings import SETTINGS, TERM, leave, preempt, take, training

from hpclaunch.core.ending.table import ENDS, REQUEUEABLE, Code, NextRun, verdict
from hpclaunch.core.protocol.events import (
    HealthFound,
    Requested,
    Signalled,
    TroubleFound,
    WorkerExited,
)
from hpclaunch.core.protocol.facts import RoundEnded
from hpclaunch.core.protocol.job_state import JobState
from hpclaunch.core.protocol.model import (
    EXIT_SAVED,
    EndKind,
    Origin,
    Request,
    Requeueing,
    Sequel,
    Trouble,
)
from hpclaunch.core.protocol.values import value
from hpclaunch.observe.end_causes import of_round

INT = 2
LONG = 2000.0  # after this, every story is over
EVERY_KIND = Requeueing(tuple(EndKind), most=5)  # more than the command line accepts
CHAIN = Requeueing(tuple(EndKind), most=1, is_chain=True)


def done(requeueing):
    crew = training(requeueing=requeueing)
    leave(crew)
    return crew


def failure(requeueing):
    crew = training(requeueing=requeueing, max_restarts=0)
    crew.feed(1, WorkerExited(2, 9, 0))
    return crew


def saved(crew):
    """Let the workers take the notice, and save."""
    take(crew)
    crew.checkpoint, crew.saved_at = "/c/5.pt", crew.now + 1.0
    crew.until(crew.now + 2.0)
    return crew


def time_limit(requeueing):
    crew = training(requeueing=requeueing)
    crew.until(251.0)
    return saved(crew)


def preemption(requeueing):
    crew = training(requeueing=requeueing)
    crew.requeues = True
    crew.until(100.0)
    preempt(crew, 160.0)
    crew.until(112.0)
    return saved(crew)


def requeue(requeueing):
    crew = training(requeueing=requeueing)
    crew.until(100.0)
    crew.ends_at, crew.state = 130.0, JobState.REQUEUED
    for agent in (0, 1):
        crew.feed(agent, Signalled(TERM))
    crew.until(102.0)
    return saved(crew)


def notice(requeueing):
    crew = training(requeueing=requeueing)
    crew.until(100.0)
    crew.feed(0, Requested(Request.NOTICE))
    crew.until(101.0)
    saved(crew)
    leave(crew)
    return crew


def drain(requeueing):
    crew = training("n0 n1 n2", most=2, fewest=2, requeueing=requeueing)
    crew.until(100.0)
    crew.draining = ("n1",)
    crew.until(130.0)
    take(crew)
    crew.checkpoint, crew.saved_at = "/c/5.pt", crew.now
    leave(crew)  # before the head has seen what they have saved
    return crew


def node_lost(requeueing):
    crew = training(requeueing=requeueing, loss=3.0, wait=10.0)
    crew.kill(1)
    return crew


def node_unfit(requeueing):
    crew = training(requeueing=requeueing, wait=10.0)
    crew.feed(1, HealthFound("a GPU is broken"))
    return crew


def head_lost(requeueing):
    """Start an agent that has never heard the head."""
    crew = Crew("n0 n1", **SETTINGS, requeueing=requeueing)
    crew.start(1)
    return crew


def absent(requeueing):
    crew = Crew("n0 n1", **SETTINGS, requeueing=requeueing)
    crew.ends_at = 1000.0
    crew.start(0)
    return crew


def stop(requeueing):
    crew = training(requeueing=requeueing)
    crew.feed(0, Requested(Request.STOP))
    return crew


def interrupt(requeueing):
    crew = training(requeueing=requeueing)
    crew.feed(1, Signalled(INT))
    return crew


def sigterm(requeueing):
    """Slurm says that the job was cancelled."""
    crew = training(requeueing=requeueing)
    crew.state = JobState.OVER
    crew.feed(1, Signalled(TERM))
    return crew


def trouble(origin, requeueing):
    crew = training(requeueing=requeueing)
    crew.feed(1, TroubleFound(Trouble(origin, "no disk")))
    return crew


@value(frozen=True)
class Way:
    """The course of a story: beside the row of its origin, its consequences."""

    has_notice: bool  # before the end, or at once
    seeks_save: bool  # the newest checkpoint is searched for before the verdict
    code: int | None  # without --requeue; None: the job continues in another round
    origin: Origin | None  # of the verdict
    alone: Sequel  # without --requeue
    wanted: Sequel  # if another run is wanted after any end
    chained: Sequel  # the same, as the next element of an array


LEAVE, LINGER, REQUEUE = Sequel.LEAVE, Sequel.LINGER, Sequel.REQUEUE
NEXT, END = Sequel.NEXT, Sequel.END_CHAIN
STORIES = {
    Origin.DONE: done,
    Origin.TIME_LIMIT: time_limit,
    Origin.PREEMPTION: preemption,
    Origin.REQUEUE: requeue,
    Origin.NOTICE: notice,
    Origin.DRAIN: drain,
    Origin.NODE_LOST: node_lost,
    Origin.NODE_UNFIT: node_unfit,
    Origin.FAILURE: failure,
    Origin.STOP: stop,
    Origin.SIGNAL: interrupt,
    Origin.SIGTERM: sigterm,
    Origin.HEAD_LOST: head_lost,
    Origin.ABSENT: absent,
    Origin.USAGE: lambda requeueing: trouble(Origin.USAGE, requeueing),
    Origin.TROUBLE: lambda requeueing: trouble(Origin.TROUBLE, requeueing),
}
WAYS = {
    Origin.DONE: Way(False, False, 0, Origin.DONE, LEAVE, LEAVE, END),
    Origin.TIME_LIMIT: Way(True, True, 75, Origin.TIME_LIMIT, LEAVE, REQUEUE, NEXT),
    Origin.PREEMPTION: Way(True, True, 75, Origin.PREEMPTION, LINGER, REQUEUE, LINGER),
    Origin.REQUEUE: Way(True, True, 75, Origin.REQUEUE, LEAVE, REQUEUE, NEXT),
    Origin.NOTICE: Way(True, True, 75, Origin.NOTICE, LEAVE, REQUEUE, NEXT),
    Origin.DRAIN: Way(True, True, None, None, LEAVE, LEAVE, LEAVE),
    Origin.NODE_LOST: Way(False, False, 1, Origin.NODE_LOST, LEAVE, REQUEUE, NEXT),
    Origin.NODE_UNFIT: Way(False, False, 1, Origin.NODE_UNFIT, LEAVE, REQUEUE, NEXT),
    Origin.FAILURE: Way(False, False, 9, Origin.FAILURE, LEAVE, REQUEUE, NEXT),
    Origin.STOP: Way(False, False, 143, Origin.STOP, LEAVE, LEAVE, END),
    Origin.SIGNAL: Way(False, False, 130, Origin.SIGNAL, LEAVE, LEAVE, END),
    Origin.SIGTERM: Way(False, False, 143, Origin.SIGNAL, LEAVE, LEAVE, END),
    Origin.HEAD_LOST: Way(False, False, 1, Origin.HEAD_LOST, LEAVE, LEAVE, LEAVE),
    Origin.ABSENT: Way(False, False, 1, Origin.ABSENT, LEAVE, LEAVE, END),
    Origin.USAGE: Way(False, False, 2, Origin.USAGE, LEAVE, LEAVE, END),
    Origin.TROUBLE: Way(False, False, 1, Origin.TROUBLE, LEAVE, LEAVE, END),
}


def ended(crew):
    crew.until(LONG)
    (one,) = set(crew.verdicts.values())
    return one


@pytest.mark.parametrize("origin", Origin)
def test_the_whole_way_of_an_end(origin):
    row, way = ENDS[origin], WAYS[origin]
    crew = STORIES[origin](Requeueing())
    assert bool(crew.notices) == way.has_notice
    assert way.seeks_save == (row.code in (Code.LAST_SAVE, EXIT_SAVED, None))
    if way.code is None:
        crew.until(200.0)
        assert row.code is None
        assert (crew.verdicts, sorted(crew.parts)) == ({}, [0, 1])
        return
    alone = ended(crew)
    assert (crew.searches > len(crew.parts)) == way.seeks_save  # each round begins with one
    assert (alone.code, alone.origin, alone.sequel) == (way.code, way.origin, way.alone)
    wanted = ended(STORIES[origin](EVERY_KIND))
    assert (wanted.origin, wanted.sequel) == (way.origin, way.wanted)
    assert (wanted.code == EXIT_SAVED) == (way.wanted is REQUEUE)
    assert (row.next_run is not NextRun.NEVER) == (way.wanted is REQUEUE)
    chained = ended(STORIES[origin](CHAIN))
    assert chained.sequel is way.chained
    assert (chained.code == EXIT_SAVED) == (way.wanted is REQUEUE)


@pytest.mark.parametrize("origin", [o for o, row in ENDS.items() if row.code is Code.LAST_SAVE])
def test_without_a_save_an_end_that_workers_have_notice_of_has_another_code(origin):
    assert verdict(origin, "", saved=True).code == EXIT_SAVED
    assert verdict(origin, "", saved=False).code == 128 + TERM


@pytest.mark.parametrize("origin", [o for o, row in ENDS.items() if row.code is Code.LAST_SAVE])
def test_the_round_has_the_cause_of_the_job_if_its_workers_stay_until_the_end(origin):
    crew = STORIES[origin](Requeueing())
    ended(crew)
    (end,) = [fact for _, fact in crew.facts[0] if isinstance(fact, RoundEnded)]
    assert of_round(end).cause is ENDS[origin].cause


def test_workers_that_leave_after_a_users_notice_have_saved_or_are_done():
    assert ENDS[Origin.NOTICE].code == EXIT_SAVED
    crew = training()
    crew.until(100.0)
    crew.feed(0, Requested(Request.NOTICE))
    crew.until(101.0)
    take(crew)
    leave(crew)
    assert ended(crew).origin is Origin.DONE


def test_the_table_has_all_origins_and_names_all_kinds():
    assert ENDS.keys() == set(Origin) == STORIES.keys() == WAYS.keys()
    assert {row.kind for row in ENDS.values()} == set(EndKind)
    assert set(EndKind) - set(REQUEUEABLE) == {EndKind.FINISHED, EndKind.STOPPED}
