"""Stories of one agent and a head that it hears little of, or nothing."""

from __future__ import annotations

import itertools

import pytest
from story import TERM, a_job, a_member, deeds, feed, idle, reports, run, running, said, stop, wait

from hpclaunch.core.member.member import AgentStart, Member
from hpclaunch.core.protocol.configuration import NOBODY
from hpclaunch.core.protocol.effects import Diagnose, Probe, StopWorkers
from hpclaunch.core.protocol.events import (
    AgentGone,
    Diagnosed,
    HeadClosed,
    HeadReached,
    Started,
    StoreListening,
    Tick,
    TroubleFound,
    WorkerExited,
)
from hpclaunch.core.protocol.model import (
    EXIT_LOST,
    Origin,
    Phase,
    Query,
    QueryKind,
    Trouble,
)


def test_the_head_never_comes():
    member = a_member(join=120.0)
    feed(member, 0.0, Started(), StoreListening(4001))
    assert Diagnose() in feed(member, 10.0, Tick())
    assert said(feed(member, 10.0, Diagnosed(""))) == ["n1 has waited 10 s for the head on n0"]
    assert Diagnose() in feed(member, 70.0, Tick())
    waits = said(feed(member, 70.0, Diagnosed("n0 refuses the connection")))
    assert waits == ["n1 has waited 70 s for the head on n0: n0 refuses the connection"]
    feed(member, 120.0, Tick())
    assert member.phase is Phase.ENDED
    assert member.verdict.code == EXIT_LOST
    words = "the head on n0 did not answer n1 within 120 s: n0 refuses the connection"
    assert member.verdict.reason == words


def test_a_first_agent_that_is_started_anew_does_not_know_for_whom_it_waits():
    member = Member(AgentStart(a_job("n0 n1"), 0, 2, "10.0.0.1", "b0", anew=True))
    feed(member, 0.0, Started(), StoreListening(4001))
    assert Diagnose() in feed(member, 10.0, Tick())
    lines = said(feed(member, 10.0, Diagnosed("n1 refuses the connection")))
    assert lines == ["n0 was started again, and has waited 10 s for a head"]


def test_a_diagnosis_that_comes_too_late_is_not_said():
    member = a_member()
    feed(member, 0.0, Started(), StoreListening(4001))
    feed(member, 10.0, Tick(), HeadReached(0), wait())
    assert deeds(feed(member, 10.1, Diagnosed("n0 refuses the connection"))) == []


@pytest.mark.parametrize(
    ("event", "code", "words"),
    [
        (TERM, 143, "ended by SIGTERM while waiting for n0"),
        (TroubleFound(Trouble(Origin.USAGE, "no script on n1")), 2, "no script on n1"),
    ],
)
def test_an_agent_with_something_to_report_waits_shortly_for_the_head(event, code, words):
    member = a_member(join=120.0, goodbye=10.0)
    feed(member, 0.0, Started(), StoreListening(4001))
    feed(member, 30.0, event)
    feed(member, 39.9, Tick())
    assert member.phase is Phase.IDLE
    feed(member, 40.0, Tick())
    assert (member.verdict.code, member.verdict.reason) == (code, words)


def test_a_silent_head_is_lost():
    """The workers are left to their lease, which is over by then."""
    member = running(loss=10.0, wait=60.0)  # last heard at 1.0, and the vote lease is of 13 s
    assert deeds(feed(member, 13.9, Tick())) == []
    assert {Probe(0)} == set(deeds(feed(member, 14.0, Tick())))
    (waits,) = said(feed(member, 19.0, Tick()))
    assert waits == (
        "n1 waits for a head: the one on n0 was lost (it has been silent for 13 s), and there is "
        "no majority for another; 55 s more"
    )
    feed(member, 73.9, Tick())
    assert member.verdict is None
    assert StopWorkers() in feed(member, 74.0, Tick())
    assert member.verdict.code == EXIT_LOST
    assert member.verdict.reason == (
        "the head on n0 was lost: it has been silent for 13 s, and too few agents are "
        "left to elect another"
    )


def test_a_dead_head_is_lost_at_once():
    member = running(loss=10.0)
    assert deeds(feed(member, 2.0, HeadClosed(0))) == [Probe(0)]
    effects = feed(member, 2.1, AgentGone(0))
    assert StopWorkers() in effects
    assert reports(effects)[-1].seeking == 1


def test_a_connection_made_again_is_a_sign_of_life():
    """The refusal that was found before is of no use any more."""
    member = running(loss=10.0)
    feed(member, 2.0, HeadClosed(0))
    assert len(reports(feed(member, 2.1, HeadReached(0)))) == 1
    assert deeds(feed(member, 2.2, AgentGone(0))) == []
    feed(member, 3.05, wait())
    effects = feed(member, 16.0, Tick())
    assert (deeds(effects), reports(effects)[-1].seeking) == ([], NOBODY)


def test_another_agents_death_is_not_the_heads():
    member = running(hosts="n0 n1 n2")
    assert deeds(feed(member, 2.0, HeadClosed(2), AgentGone(2), Tick())) == []
    assert member.phase is Phase.RUNNING


def test_after_a_pause_what_was_heard_comes_before_the_clock():
    """Only a Tick advances the time: other events may have orders waiting behind them."""
    member = running(loss=10.0)
    effects = feed(member, 15.0, WorkerExited(2, 0, 0), wait(), Tick())
    assert deeds(effects) == []
    assert member.verdict is None


def test_waiting_for_workers_without_a_head_does_not_spin():
    """With a verdict, the head's silence is no deadline any more."""
    member = running(loss=10.0, grace=20.0, goodbye=10.0)
    for now in (14.0, 24.0, 25.0):
        feed(member, now, Tick())
        assert member.next_deadline() > now
    assert (member.phase, member.verdict.code) == (Phase.STOPPING, EXIT_LOST)


# Beats


def test_a_beat_each_second_whatever_happens():
    member = running()
    for now in itertools.islice(itertools.count(2.0), 5):
        assert member.next_deadline() == pytest.approx(now)
        assert len(reports(feed(member, now, Tick()))) == 1
    assert reports(feed(member, 6.5, Tick())) == []


def test_the_beat_is_longer_while_workers_run_and_the_loss_timeout_is_long():
    member = running(loss=300.0, beat=0.5, quiet=2.0)
    feed(member, 10.0, Tick())
    assert member.next_deadline() == pytest.approx(12.0)
    feed(member, 10.1, run(0, queries=(Query(QueryKind.VITALS, 1),)))
    assert member.next_deadline() == pytest.approx(10.6)  # somebody looks


def test_a_report_at_the_beginning_of_a_sample_shows_how_the_clocks_differ():
    member = running(loss=300.0, beat=0.5, quiet=2.0)
    feed(member, 10.0, Tick())
    assert len(reports(feed(member, 10.1, run(0, queries=(Query(QueryKind.SAMPLE, 1),))))) == 1


def test_serials_grow():
    member = idle()
    sent = reports(feed(member, 1.0, run(0)) + feed(member, 2.0, Tick(), stop(0)))
    serials = [report.serial for report in sent]
    assert serials == sorted(set(serials))
