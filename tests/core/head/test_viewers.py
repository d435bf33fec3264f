"""The view of a job that people get, and the requests that they may send."""

from __future__ import annotations

import pytest
from crew import Crew
from story import a_job, seen

from hpclaunch.core.control import Control
from hpclaunch.core.member.member import AgentStart
from hpclaunch.core.protocol import effects
from hpclaunch.core.protocol.events import (
    HealthFound,
    LookedAt,
    Requested,
    Started,
    StoreListening,
    WorkerExited,
    WorkersAnswered,
    WorkersGone,
)
from hpclaunch.core.protocol.gpu_use import GpuUse
from hpclaunch.core.protocol.job_snapshot import AgentState
from hpclaunch.core.protocol.model import Answer, QueryKind, RankVitals, Request, Vitals
from hpclaunch.core.protocol.stages import Stage

GPU = GpuUse(0.5, 1, 2, 60, 300.0)


def training(hosts="n0 n1", **settings):
    """Two workers on each."""
    crew = Crew(hosts, **settings)
    crew.start(*range(len(hosts.split())))
    crew.until(2.0)
    return crew


def past_rounds(crew):
    return crew.past_rounds()


def snapshot(crew, agent=0):
    return crew.agents[agent].snapshot(crew.now)


def look(crew, agent=0):
    """Return which agents were asked for vitals, which they report."""
    asked = []
    carry_out = crew._carry_out

    def noted(i, effect):
        if isinstance(effect, effects.AskWorkers):
            assert effect.query.kind is QueryKind.VITALS
            asked.append(i)
            ranks = tuple(RankVitals(2 * i + k, "step", 7, 1007, 1.0, 100) for k in range(2))
            crew._todo.append((i, WorkersAnswered(Answer(effect.query, Vitals(ranks, (GPU,))))))
        carry_out(i, effect)

    crew._carry_out = noted
    crew.feed(agent, LookedAt())
    crew.until(crew.now + 1.2)
    crew._carry_out = carry_out
    return asked


def test_what_a_head_knows_at_once():
    crew = training("n0 n1 n2", most=2, max_restarts=5)
    job = snapshot(crew)
    assert (job.stage, job.head, job.round, job.most, job.fewest) == (Stage.RUNNING, "n0", 0, 2, 2)
    assert (job.restarts, job.max_restarts, job.ranks) == (0, 5, 4)
    assert [a.state for a in job.agents] == [
        AgentState.RUNNING,
        AgentState.RUNNING,
        AgentState.SPARE,
    ]
    assert [(a.first_rank, a.ranks) for a in job.agents] == [(0, 2), (2, 2), (0, 0)]
    assert job.begun is not None
    assert 0 < job.begun <= 2.0
    assert job.agents[0].heard is None  # the head's own
    assert 0 <= job.agents[1].heard < 1.0
    assert snapshot(crew, 1) is None
    assert crew.agents[1].head_host == "n0"


def test_restarts_that_a_new_checkpoint_gave_back_are_not_shown_as_used():
    crew = training(max_restarts=2, saves=True)
    fail(crew, words="boom")
    assert (snapshot(crew).restarts, snapshot(crew).spent) == (1, 1)
    crew.checkpoint = "/c/1.pt"
    fail(crew, words="another boom")
    fail(crew, words="yet another")
    crew.checkpoint = "/c/2.pt"
    fail(crew, words="and another")
    assert (snapshot(crew).restarts, snapshot(crew).spent) == (4, 1)


def test_a_failure_that_may_end_the_job_is_no_used_restart():
    crew = training(max_restarts=1, saves=True)
    fail(crew, words="boom")
    crew.checkpoint = None
    fail(crew, words="another boom")
    job = snapshot(crew)
    assert job.stage is Stage.CHOOSING
    assert (job.spent, job.max_restarts) == (1, 1)


def test_a_query_changes_nothing():
    crew = training()
    before = crew.agents[0].next_deadline()
    assert snapshot(crew) == snapshot(crew)
    assert crew.agents[0].next_deadline() == before


def test_agents_are_asked_only_while_somebody_looks():
    crew = training()
    assert snapshot(crew).is_complete  # nothing was asked for
    assert look(crew) == [0, 1]
    job = snapshot(crew)
    assert job.is_complete
    assert [worker.rank for agent in job.agents for worker in agent.workers] == [0, 1, 2, 3]
    assert job.agents[1].gpus == (GPU,)
    assert (job.steps, job.step) == (7, 1007)
    assert look(crew) == []  # too soon for others
    crew.until(crew.now + 2.0)
    assert look(crew) == [0, 1]
    crew.until(crew.now + 20.0)  # nobody looks any more, and the reports are as before
    assert snapshot(crew).agents[1].workers == ()


def test_a_snapshot_is_not_complete_before_all_have_answered():
    crew = training()
    crew.feed(0, LookedAt())
    assert not snapshot(crew).is_complete
    crew.until(crew.now + 1.0)
    assert not snapshot(crew).is_complete


def test_how_fast_steps_are_made():
    crew = training()
    assert snapshot(crew).pace is None
    for made in range(10, 400, 10):
        for agent in (0, 1):
            crew.feed(agent, seen(steps=(made, made)))
        crew.until(crew.now + 5.0)
    job = snapshot(crew)
    assert job.pace == pytest.approx(0.5, rel=0.1)
    assert (job.steps, job.step) == (390, 0)


def test_the_time_before_the_first_step_is_no_part_of_the_pace():
    crew = training()
    for made in (0, 1, 11):
        crew.feed(0, seen(steps=(made, made)))
        crew.until(crew.now + 5.0)
    assert snapshot(crew).pace == pytest.approx(0.5, rel=0.1)


def test_a_number_of_steps_that_a_report_repeats_is_not_taken_for_a_new_one():
    """Agents read it every few seconds. A report about something else has the last number again."""
    crew = training()
    crew.feed(0, seen(steps=(10, 10)))
    crew.until(crew.now + 1.0)
    crew.feed(0, seen(steps=(12, 12)))
    crew.until(crew.now + 4.5)
    crew.feed(0, seen(steps=(12, 12), busy=True))
    crew.until(crew.now + 1.0)
    crew.feed(0, seen(steps=(23, 23)))
    crew.until(crew.now + 1.0)
    assert snapshot(crew).pace == pytest.approx(0.5, rel=0.1)


def fail(crew, agent=1, words="ValueError: no"):
    crew.feed(agent, WorkerExited(2 * agent, 1, 0, words))
    crew.until(crew.now + 2.0)


def test_rounds_that_are_over():
    crew = training()
    fail(crew)
    job = snapshot(crew)
    assert (job.round, job.restarts) == (1, 1)
    (past,) = past_rounds(crew)
    assert past.why == "rank 2 on n1 exited with code 1"
    assert (past.round, past.ranks, past.is_fault) == (0, 4, True)
    assert past.ended < 3.0
    for _ in range(20):
        crew.checkpoint = f"/c/{crew.now}.pt"
        fail(crew)
    assert len(past_rounds(crew)) <= 8


def test_the_rounds_of_a_head_that_is_lost_are_over():
    crew = training("n0 n1 n2", fewest=2, most=3)
    fail(crew)
    crew.kill(0)
    crew.until(crew.now + 10.0)
    first, last = past_rounds(crew)
    assert (first.round, first.is_fault) == (0, True)
    assert (last.round, last.why, last.is_fault) == (1, "the head on n0 was lost", False)


def test_a_lost_node_is_named_with_the_reason():
    crew = training("n0 n1 n2", fewest=2, most=3)
    crew.kill(2)
    crew.until(crew.now + 1.0)
    job = snapshot(crew)
    assert job.agents[2].state is AgentState.LOST
    assert job.agents[2].why.startswith("the agent on n2 was lost: ")
    (past,) = past_rounds(crew)
    assert past.why == job.agents[2].why
    assert not past.is_fault


def test_a_node_that_has_left_at_the_end_is_not_lost():
    crew = training("n0 n1 n2", fewest=2, most=3)
    crew.kill(0, down=True)
    crew.until(crew.now + 10.0)
    (head,) = crew.heads
    for agent in (1, 2):
        first = snapshot(crew, head).agents[agent].first_rank
        for rank in (first, first + 1):
            crew.feed(agent, WorkerExited(rank, 0, 0))
        crew.feed(agent, WorkersGone())
    crew.until(crew.now + 5.0)  # the head waits for n0
    states = [each.state for each in snapshot(crew, head).agents]
    assert states == [AgentState.LOST, AgentState.LEFT, AgentState.LEFT]


def test_a_cordoned_node():
    crew = training("n0 n1 n2", most=2)
    crew.feed(2, HealthFound("its disk is full"))
    crew.until(crew.now + 1.0)
    agent = snapshot(crew).agents[2]
    assert (agent.state, agent.why) == (AgentState.CORDONED, "its disk is full")


def test_the_next_head_answers():
    crew = training("n0 n1 n2", fewest=2, most=3)
    crew.kill(0)
    crew.until(crew.now + 6.0)
    (head,) = crew.heads
    job = snapshot(crew, head)
    assert job.head == f"n{head}"
    assert job.stage is Stage.RUNNING
    assert job.agents[0].state is AgentState.LOST
    assert len(look(crew, head)) == 2


# Requests


def ask(crew, request, agent=0):
    control = crew.agents[agent]
    why = control.refusal(request)
    if not why:
        crew.feed(agent, Requested(request))
        crew.until(crew.now + 2.0)
    return why


def test_stop_ends_the_job_everywhere():
    crew = training()
    assert ask(crew, Request.STOP) == ""
    assert {v.code for v in crew.verdicts.values()} == {143}
    assert crew.verdicts.keys() == {0, 1}
    assert crew.verdicts[1].reason == "ended by hpclaunch stop"


def test_stop_before_the_first_round():
    crew = Crew("n0 n1")
    crew.start(0)
    crew.until(5.0)
    assert ask(crew, Request.STOP) == ""
    assert crew.agents[0].head.stage in (Stage.ENDING, Stage.ENDED)


def test_restart_is_counted_as_no_failure():
    crew = training(max_restarts=0, saves=True)
    crew.checkpoint = "/c/10.pt"
    assert ask(crew, Request.RESTART) == ""
    job = snapshot(crew)
    assert (job.round, job.restarts, job.resumed) == (1, 0, "/c/10.pt")
    assert past_rounds(crew)[0].why == "the user has asked for a restart"
    assert crew.running == {0: 1, 1: 1}
    assert not crew.clashes


def test_notice_is_given_to_all_before_one_step():
    crew = training()
    crew.steps = {0: (5, 5), 1: (5, 6)}
    assert ask(crew, Request.NOTICE) == ""
    crew.until(crew.now + 5.0)
    given = [notices[-1] for notices in crew.notices.values()]
    assert len(given) == 2
    assert len({(notice.step, notice.signum) for notice in given}) == 1
    assert snapshot(crew).notice.startswith("given before step ")
    assert snapshot(crew).round == 0


@pytest.mark.parametrize("request_", [Request.RESTART, Request.NOTICE])
def test_what_cannot_be_done_outside_of_a_round(request_):
    crew = Crew("n0 n1")
    crew.start(0)
    crew.until(2.0)
    assert "no round of the training is running" in ask(crew, request_)


def test_what_is_refused():
    crew = training(notice=0.0)
    assert "--notice off" in ask(crew, Request.NOTICE)
    assert "the job is led from n0" in ask(crew, Request.STOP, 1)
    assert ask(crew, Request.STOP, 0) == ""
    assert not crew.agents


def test_an_agent_without_a_head_names_none():
    crew = training("n0 n1 n2")
    crew.kill(0, down=True)
    crew.until(crew.now + 8.0)
    crew.kill(1, down=True)
    crew.until(crew.now + 8.0)
    assert crew.agents[2].head_host == ""
    assert ask(crew, Request.STOP, 2) == "no head is known: ask again later"


def test_an_agent_that_does_not_lead_disregards_it():
    crew = training()
    for event in (LookedAt(), Requested(Request.STOP), StoreListening(1)):
        crew.feed(1, event)
    crew.until(crew.now + 2.0)
    assert not crew.verdicts


def test_a_look_at_a_job_of_one_agent_begins_no_heartbeats():
    control = Control(AgentStart(a_job("n0"), 0, 2, "127.0.0.1", "a0"))
    control.handle(Started(), 0.0)
    before = control.next_deadline()
    control.handle(LookedAt(), 1.0)
    assert control.next_deadline() == before
