"""The rounds that the heads of a job record, as a ledger and a report show them."""

from __future__ import annotations

import math

import pytest
from crew import Crew

from hpclaunch.core.protocol.events import Requested, WorkerExited
from hpclaunch.core.protocol.facts import HeadChanged, JobEnded, SeatUse
from hpclaunch.core.protocol.model import EndCause, Request
from hpclaunch.core.protocol.stages import Stage
from hpclaunch.core.protocol.values import replace
from hpclaunch.observe.job_report import report


def training(hosts="n0 n1 n2"):
    """Two workers on each."""
    crew = Crew(hosts, fewest=1)
    crew.start(*range(len(hosts.split())))
    crew.until(2.0)
    return crew


def ends(launch):
    return [(end.round, end.cause, end.who) for end in report([launch]).ends]


def test_a_round_that_ends_with_its_head():
    crew = training()
    crew.kill(0)
    crew.until(6.0)
    assert ends(crew.launch(1)) == ends(crew.launch()) == [(0, EndCause.LOST.value, "")]
    (end,) = report([crew.launch()]).ends
    assert end.text == "the head on n0 was lost"
    assert 1.0 < end.at <= 2.0 <= end.seen


def test_workers_that_fail_for_want_of_the_head_are_no_cause():
    crew = training()
    crew.kill(0, down=True)
    crew.until(2.2)
    crew.feed(1, WorkerExited(2, 1, 0, "RuntimeError: Connection closed by peer"))
    crew.until(20.0)
    (end,) = report([crew.launch(1)]).ends
    assert (end.cause, end.who) == (EndCause.LOST.value, "")
    assert end.consequences == ("rank 2 on n1",)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_head_that_is_lost_after_a_worker_has_failed(is_written):
    """The failure is the cause, whether or not the old head has written it down."""
    crew = training()
    crew.checkpoint = None  # the next round does not begin
    crew.feed(1, WorkerExited(2, 1, 0, "ValueError: no"))
    crew.until(3.0)
    crew.facts[0] = crew.facts[0] if is_written else [each for each in crew.facts[0] if each[0] < 2]
    crew.checkpoint = ""
    crew.kill(0)
    crew.until(8.0)
    assert ends(crew.launch()) == [(0, EndCause.EXCEPTION.value, "rank 2 on n1")]


def test_the_end_of_a_round_is_there_while_its_workers_are_stopped():
    crew = training()
    crew.cut([0], [2])
    crew.feed(0, Requested(Request.RESTART))
    assert crew.agents[0].head.stage is Stage.STOPPING
    assert ends(crew.launch()) == [(0, EndCause.USER.value, "")]
    crew.kill(0)
    crew.until(20.0)
    assert ends(crew.launch()) == [(0, EndCause.USER.value, "")]


def test_the_restarts_of_a_job_that_continues():
    crew = training()
    crew.feed(1, WorkerExited(2, 1, 0, "ValueError: no"))
    crew.until(4.0)
    first = crew.launch()
    assert report([first]).restarts == 1
    assert report([first, replace(first, name="1.0.r1")]).restarts == 2


def test_what_the_seats_do_is_recorded_only_when_it_changes():
    crew = training()
    before = len(crew.facts[0])
    crew.until(60.0)
    assert len(crew.facts[0]) == before


def test_an_agent_that_nobody_follows_yet_records_nothing(monkeypatch):
    """Another one may have been quicker, and then these facts would hide those of that one. Once it
    certainly leads, they are dated back.
    """
    crew = training()
    control, reaches = crew.agents[1], crew._reaches
    monkeypatch.setattr(crew, "_reaches", lambda a, b: a != 1 and reaches(a, b))
    crew.kill(0)
    while not control.leads:
        crew.until(crew.now + 0.1)
    elected_at = crew.now
    assert not control.head.is_confirmed
    assert (control.seat_use(crew.now), crew.facts.get(1)) == (None, None)
    crew.until(crew.now + 1.0)
    monkeypatch.undo()
    crew.until(crew.now + 5.0)
    changed, use = crew.facts[1][:2]
    assert isinstance(changed[1], HeadChanged)
    assert isinstance(use[1], SeatUse)
    assert changed[0] <= use[0] <= elected_at < math.inf
    assert ends(crew.launch()) == [(0, EndCause.LOST.value, "")]


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_head_that_ends_the_job_before_it_is_confirmed(is_followed):
    """Agent 2 is no voter yet when the first head dies. So it must wait for the vote lease of the
    dead head, but the job is over at once. If agent 1 is silent, it might have been quicker.
    """
    crew = Crew("n0 n1 n2", fewest=3)
    for agent in range(3):
        crew.start(agent)
        crew.until(crew.now + 0.3)
    crew.cut([1], [2])  # until agent 1, which is first in line, has no time left
    crew.kill(0)
    crew.until(crew.now + 0.7)
    crew.mend()
    reaches = crew._reaches
    if not is_followed:
        crew._reaches = lambda a, b: not (a == 1 and crew.agents[2].leads) and reaches(a, b)
    crew.until(crew.now + 20.0)
    assert 2 in crew.verdicts
    kinds = [type(fact) for agent in range(3) for _, fact in crew.facts.get(agent, [])]
    assert [kinds.count(kind) for kind in (HeadChanged, JobEnded)] == [is_followed] * 2
