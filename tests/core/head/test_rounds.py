"""Stories of the head: what the agents report, and what it makes of them."""

from __future__ import annotations

import pytest
from story import (
    Say,
    a_job,
    deeds,
    failed,
    feed,
    killed_with_server,
    orders,
    report,
    said,
    store_ended,
)

from hpclaunch.core.head.head import Head
from hpclaunch.core.protocol.effects import ChooseCheckpoint, Diagnose, Probe, Record, Send
from hpclaunch.core.protocol.events import (
    AgentGone,
    CheckpointChosen,
    Diagnosed,
    PeerClosed,
    Started,
    Tick,
)
from hpclaunch.core.protocol.messages import Order
from hpclaunch.core.protocol.model import (
    END_SIGNALS,
    EXIT_LOST,
    EXIT_USAGE,
    Origin,
    Phase,
    Trouble,
    WorkerExit,
)
from hpclaunch.core.protocol.stages import Stage
from hpclaunch.core.protocol.values import replace
from hpclaunch.observe.console import Console

IDLE, RUNNING, STOPPING = Phase.IDLE, Phase.RUNNING, Phase.STOPPING
DONE, ENDED, PREPARING = Phase.DONE, Phase.ENDED, Phase.PREPARING


def all_report(phase, number=-1, agents=2, **fields):
    return [report(i, phase, number, **fields) for i in range(agents)]


def gathered(hosts="n0 n1", **settings):
    """Everybody is ready; the checkpoint is being chosen. No beat disturbs the story."""
    settings = {"loss": 100.0, "beat": 100.0} | settings
    head = Head(a_job(hosts, **settings))
    feed(head, 0.0, Started(), *all_report(IDLE, agents=len(hosts.split())))
    return head


def running(hosts="n0 n1", **settings):
    head = gathered(hosts, **settings)
    feed(head, 0.1, CheckpointChosen(""))
    feed(head, 0.2, *all_report(RUNNING, 0, agents=len(hosts.split())))
    return head


def sent(effects):
    return {e.to: e.message for e in effects if isinstance(e, Send)}


# One round


def test_ranks_are_in_the_order_of_slurms_tasks():
    head = Head(a_job("n0 n1 n2", beat=100.0))
    tasks = {0: 1, 1: 2, 2: 0}
    idle = [report(agent, IDLE, task=task) for agent, task in tasks.items()]
    feed(head, 0.0, Started(), *idle)
    orders_sent = sent(feed(head, 0.1, CheckpointChosen("")))
    parts = {agent: order.assignment for agent, order in orders_sent.items()}
    assert {agent: part.group_rank for agent, part in parts.items()} == tasks
    assert parts[2].hosts_store


def test_a_node_comes_where_its_first_task_does():
    head = Head(a_job("n0 n0 n1 n1", beat=100.0))
    idle = [report(agent, IDLE, task=task) for agent, task in enumerate([1, 2, 0, 3])]
    feed(head, 0.0, Started(), *idle)
    orders_sent = sent(feed(head, 0.1, CheckpointChosen("")))
    first = {agent: order.assignment.first_rank for agent, order in orders_sent.items()}
    assert first == {2: 0, 3: 2, 0: 4, 1: 6}


def test_a_job_that_succeeds():
    head = Head(a_job(beat=100.0))
    feed(head, 0.0, Started(), report(0, IDLE))
    assert deeds(feed(head, 0.1, report(1, IDLE))) == [ChooseCheckpoint()]
    effects = feed(head, 0.2, CheckpointChosen(""))
    assert orders(effects) == [(0, "run", 0), (1, "run", 0)]
    first, second = (sent(effects)[i].assignment for i in (0, 1))
    assert (first.first_rank, first.hosts_store) == (0, True)
    assert (second.first_rank, second.hosts_store) == (2, False)
    assert {first.world_size, second.world_size} == {4}
    assert first.store_address == second.store_address == "10.0.0.1"
    assert first.store_port == second.store_port == 4000
    assert feed(head, 5.0, report(0, DONE, 0)) == []
    effects = feed(head, 5.1, report(1, DONE, 0))
    assert orders(effects) == [(0, "end", 0), (1, "end", 0)]
    assert sent(effects)[1].verdict.code == 0
    feed(head, 5.2, *all_report(ENDED, 0))
    assert head.stage is Stage.ENDED


def test_a_first_round_begins_before_anybody_has_answered():
    """On a busy machine, an answer may take longer than a beat."""
    head = Head(a_job("n0 n1 n2", loss=3.0, beat=0.5))
    feed(head, 0.0, Started(), report(0, IDLE))
    unanswered = {"heard": -1, "version": -1}
    feed(head, 0.3, report(1, IDLE, **unanswered), report(2, IDLE, **unanswered))
    feed(head, 0.4, CheckpointChosen(""))
    feed(head, 0.5, report(0, RUNNING, 0), Tick())
    assert head.stage is Stage.RUNNING
    feed(head, 1.0, *(report(i, RUNNING, 0) for i in range(3)))
    feed(head, 3.5, Tick())
    assert head.stage is Stage.RUNNING


def test_a_beat_is_done_with_the_report_that_comes_at_its_time():
    head = running(beat=1.0)
    at = head.next_deadline()
    assert feed(head, at - 0.05, report(1, RUNNING, 0))
    assert head.next_deadline() > at + 0.9


@pytest.mark.parametrize(
    ("own", "expected"), [("", "10.0.0.7"), ("10.9.9.9", "10.9.9.9")], ids=["found", "chosen"]
)
def test_the_address_of_the_heads_node(own: str, expected: str) -> None:
    """By default, the store's address is the one at which another node has reached the head."""
    head = Head(a_job("n0 n0 n1"))
    feed(head, 0.0, Started(), report(0, IDLE, address=own))
    feed(head, 0.1, report(1, IDLE, address="", head_address="127.0.0.1"))
    feed(head, 0.2, report(2, IDLE, address="10.0.0.8", head_address="10.0.0.7"))
    effects = feed(head, 0.3, CheckpointChosen(""))
    parts = [sent(effects)[i].assignment for i in range(3)]
    assert [part.address for part in parts] == [expected, "10.0.0.7", "10.0.0.8"]
    assert [part.store_address for part in parts] == [expected] * 3


def test_a_world_of_the_heads_node_alone_needs_no_other_address() -> None:
    head = Head(a_job("n0 n0"))
    feed(head, 0.0, Started(), *(report(i, IDLE, address="") for i in range(2)))
    effects = feed(head, 0.3, CheckpointChosen(""))
    assert [sent(effects)[i].assignment.address for i in range(2)] == ["127.0.0.1"] * 2


def test_checkpoints_that_are_passed_over_are_named():
    head = gathered()
    effects = feed(head, 0.2, CheckpointChosen("/c/4.pt", ("5.pt: not complete",)))
    assert deeds(effects) == [
        Say("skipping checkpoint 5.pt: not complete"),
        Say("resuming from /c/4.pt"),
    ]
    assert {m.assignment.checkpoint for m in sent(effects).values()} == {"/c/4.pt"}


def test_a_worker_fails_and_the_job_continues():
    head = running()
    effects = feed(head, 3.0, report(1, STOPPING, 0, exits=(failed(2),)))
    assert orders(effects) == [(0, "stop", 0), (1, "stop", 0)]
    assert deeds(feed(head, 3.1, report(1, IDLE, 0, exits=(failed(2),)))) == []
    effects = feed(head, 3.2, report(0, IDLE, 0))
    assert deeds(effects) == [
        Say("rank 2 on n1 exited with code 1; restart 1 of 3"),
        ChooseCheckpoint(),
    ]
    effects = feed(head, 3.3, CheckpointChosen("/c/1.pt"))
    assert orders(effects) == [(0, "run", 1), (1, "run", 1)]
    assert {m.assignment.restarts for m in sent(effects).values()} == {1}


def test_a_fork_server_is_killed_and_the_job_continues():
    head = running()
    feed(head, 3.0, report(1, PREPARING, 0, exits=(killed_with_server(2),)))
    assert head.stage is Stage.STOPPING
    (said, _) = deeds(feed(head, 3.1, *all_report(IDLE, 0)))
    assert said == Say("the fork server on n1 was killed with its workers; restart 1 of 3")


def test_a_store_ends_and_the_job_continues():
    """Ranks that failed of it are a consequence, though they are heard first."""
    head = running()
    feed(head, 3.0, report(1, STOPPING, 0, exits=(failed(2),)))
    feed(head, 3.1, report(0, STOPPING, 0, exits=(store_ended(),)))
    (said, _) = deeds(feed(head, 3.2, *all_report(IDLE, 0)))
    assert said == Say("the store process on n0 was killed by SIGKILL; restart 1 of 3")


def test_a_store_that_ends_last_is_no_failure():
    head = running()
    feed(head, 3.0, report(1, DONE, 0))
    feed(head, 3.1, report(0, DONE, 0, exits=(store_ended(),)))
    assert head.state.end.verdict.code == 0


def test_a_store_that_nobody_can_serve_ends_the_job():
    """A store process without torch would fail again: no other round is tried."""
    head = running()
    words = "ModuleNotFoundError: No module named 'torch'"
    end = replace(store_ended(), code=1, signal=0, tail=words)
    feed(head, 3.0, report(0, STOPPING, 0, exits=(end,)))
    feed(head, 3.1, *all_report(IDLE, 0))
    assert head.state.end.verdict.reason == (
        f"the store process on n0 exited with code 1 in round 0, and it would fail again: {words}"
    )


def test_a_round_waits_for_an_agent_that_is_not_ready_again():
    """A fork server is killed while the checkpoint is chosen; the new store has another port."""
    head = gathered()
    feed(head, 0.1, report(0, PREPARING))
    assert feed(head, 0.2, CheckpointChosen("/c/1.pt")) == []
    assert head.next_deadline() > 10.0, "there is nothing to say about a search that is over"
    effects = feed(head, 0.3, report(0, IDLE, store_port=4711))
    assert deeds(effects) == [Say("resuming from /c/1.pt")]
    assert {m.assignment.store_port for m in sent(effects).values()} == {4711}


def test_the_agents_learn_why_they_stop():
    """Workers that wait for a failed peer have nothing to save; workers asked to end may have."""
    lost = running()
    effects = feed(lost, 3.0, report(1, STOPPING, 0, exits=(failed(2),)))
    assert [message.lost for message in sent(effects).values()] == [True, True]
    ended = running()
    effects = feed(ended, 3.0, report(1, STOPPING, 0, stop_signal=15))
    effects += feed(ended, 3.1, report(0, RUNNING, 0, exits=(failed(0),)))
    assert [message.lost for message in sent(effects).values()] == [False, False]


def test_no_round_begins_before_every_worker_of_the_last_is_gone():
    head = running()
    feed(head, 3.0, report(1, IDLE, 0, exits=(failed(2),)))
    for phase in (RUNNING, STOPPING, PREPARING):
        assert deeds(feed(head, 4.0, report(0, phase, 0))) == []
    assert head.stage is Stage.STOPPING


def test_the_budget_is_spent():
    head = running(max_restarts=0)
    early, late = failed(3, 139, 11, age=0.9), failed(0, age=0.1)
    feed(head, 3.0, report(0, STOPPING, 0, exits=(late,)))
    feed(head, 3.1, report(1, IDLE, 0, exits=(early,)))
    effects = feed(head, 3.2, report(0, IDLE, 0, exits=(late,)))
    verdict = sent(effects)[1].verdict
    assert (verdict.code, verdict.cause.rank) == (139, 3)
    assert [f.rank for f in verdict.consequences] == [0]


def test_workers_that_were_stopped_are_no_failures():
    head = running()
    stopped = WorkerExit(2, 143, 15, age=0.0, stopped=True, tail="")
    feed(head, 3.0, report(1, STOPPING, 0, exits=(stopped,)))
    assert head.stage is Stage.RUNNING


def test_what_fails_while_it_is_stopped_is_a_consequence():
    """A peer that notices the loss and gives up just when its agent hears of it."""
    head = running(max_restarts=0)
    feed(head, 3.0, report(0, STOPPING, 0, exits=(failed(0, code=7),)))
    gave_up = WorkerExit(2, 1, 0, age=0.0, stopped=True, tail="")
    ended = WorkerExit(3, 143, 15, age=0.0, stopped=True, tail="")
    feed(head, 3.1, report(1, STOPPING, 0, exits=(gave_up, ended)))
    feed(head, 3.2, *all_report(IDLE, 0))
    assert head.state.end.verdict.code == 7
    assert [f.rank for f in head.state.end.verdict.consequences] == [2]


def test_a_failure_counts_however_late_it_is_reported():
    """A lost report does no harm: the next one repeats everything."""
    head = running()
    feed(head, 3.0, report(0, DONE, 0), report(1, IDLE, 0, exits=(failed(2),)))
    assert head.stage is Stage.STOPPING


# Messages


def test_old_and_repeated_reports_change_nothing():
    head = running()
    feed(head, 3.0, report(1, DONE, 0, serial=900_001))
    for again in (
        report(1, RUNNING, 0, serial=900_000),
        report(1, DONE, 0, serial=900_001),
        report(1, STOPPING, 0, serial=900_001, exits=(failed(2),)),
    ):
        assert feed(head, 3.1, again) == []
    assert head.stage is Stage.RUNNING
    assert head.state.roster[1].report.phase is DONE


def test_a_failure_of_an_old_round_is_no_failure_of_this_one():
    head = running()
    feed(head, 3.0, report(1, IDLE, 0, exits=(failed(2),)), report(0, IDLE, 0))
    feed(head, 3.1, CheckpointChosen(""))
    feed(head, 3.2, report(1, IDLE, 0, exits=(failed(2),)))
    assert (head.stage, head.state.round) == (Stage.RUNNING, 1)


def test_who_says_nothing_hears_again_and_the_assignment_until_it_is_taken():
    head = gathered(beat=1.0)
    feed(head, 0.5, CheckpointChosen(""))
    assert 1 not in sent(feed(head, 1.0, Tick()))  # it got an order a moment ago
    again = sent(feed(head, 2.0, Tick()))
    assert again[1].assignment.first_rank == 2
    answer = sent(feed(head, 2.1, report(1, RUNNING, 0)))
    assert answer[1].assignment is None
    assert 1 not in sent(feed(head, 3.0, Tick()))
    assert sent(feed(head, 4.0, Tick()))[1].assignment is None


# Who is there


def test_join_timeout_names_the_hosts():
    head = Head(a_job("n0 n1 n2", join=600.0, loss=1000.0))
    feed(head, 0.0, Started(), report(0, IDLE), report(1, IDLE))
    assert Diagnose() in feed(head, 10.0, Tick())
    (said,) = deeds(feed(head, 10.0, Diagnosed("3 connections were refused")))
    words = "waiting for n2 (10 s so far); 2 of 3 agents are here; 3 connections were refused"
    assert said == Say(words)
    verdict = sent(feed(head, 600.0, Tick()))[1].verdict
    assert verdict.code == EXIT_LOST
    assert verdict.reason.startswith("no agent on n2 reported within 600 s")


def test_an_agent_that_was_lost_is_not_here():
    head = Head(a_job("n0 n1 n2", fewest=1))
    feed(head, 0.0, Started(), report(0, IDLE), report(1, IDLE))
    feed(head, 1.0, PeerClosed(1), AgentGone(1))
    assert Diagnose() in feed(head, 10.0, Tick())
    assert said(feed(head, 10.1, Diagnosed(""))) == [
        "waiting for n2 (10 s so far); 1 of 3 agents are here"
    ]


def test_nodes_where_only_some_tasks_run_hpclaunch():
    head = Head(a_job("n0 n0 n1 n1", beat=100.0, loss=1000.0, join=600.0, first_notice=10.0))
    feed(head, 0.0, Started(), report(0, IDLE), report(2, IDLE))
    why = "hpclaunch runs in 1 of 2 tasks on n0: start it in all of them, or ask Slurm for "
    why += "--ntasks-per-node=1"
    feed(head, 10.0, Tick())
    (said,) = deeds(feed(head, 10.0, Diagnosed("")))
    words = f"waiting for n0, n1 (10 s so far); 2 of 4 agents are here; {why}"
    assert said == Say(words)
    verdict = sent(feed(head, 600.0, Tick()))[2].verdict
    assert verdict.reason == f"no agent on n0, n1 reported within 600 s: {why}"


def test_many_missing_hosts_are_counted():
    head = Head(a_job(" ".join(f"n{i}" for i in range(12))))
    feed(head, 0.0, Started(), report(0, IDLE))
    feed(head, 10.0, Tick())
    (said,) = deeds(feed(head, 10.0, Diagnosed("")))
    assert "n8 and 3 more (10 s so far)" in said.text


def test_who_came_in_the_meantime_is_not_missed():
    head = Head(a_job("n0 n1"))
    feed(head, 0.0, Started(), report(0, IDLE))
    feed(head, 10.0, Tick(), report(1, PREPARING))
    assert deeds(feed(head, 10.1, Diagnosed("3 connections were refused"))) == []


@pytest.mark.parametrize("first_round", [0, 7])
def test_nodes_with_different_numbers_of_workers_are_pointed_out(first_round):
    """A later run of a job may have other nodes."""
    head = Head(a_job("n0 n1 n2", first_round=first_round))
    feed(head, 0.0, Started(), *(report(i, IDLE, nproc=n) for i, n in enumerate((2, 2, 1))))
    said = deeds(feed(head, 0.1, CheckpointChosen("")))
    assert said == [Say("the nodes have different numbers of workers: 2(x2),1")]


def test_hosts_that_nobody_knew_beforehand():
    """Without Slurm an agent's own report says what its machine is called."""
    head = Head(a_job("n0 machine-1", max_restarts=0))
    feed(head, 0.0, Started(), report(0, IDLE), report(1, IDLE, host="lab7"))
    feed(head, 0.1, CheckpointChosen(""), report(0, RUNNING, 0))
    feed(head, 1.0, report(1, STOPPING, 0, host="lab7", exits=(failed(2),)))
    feed(head, 1.0, report(0, PREPARING, 0), report(1, PREPARING, 0, host="lab7"))
    feed(head, 1.0, report(0, IDLE, 0), report(1, IDLE, 0, host="lab7"))
    assert head.state.end.verdict.reason.startswith("rank 2 on lab7 exited with code 1")


def test_a_new_agent_is_answered_at_once():
    head = Head(a_job("n0 n1 n2"))
    feed(head, 0.0, Started(), report(0, IDLE))
    assert orders(feed(head, 0.1, report(1, PREPARING))) == [(1, "wait", 0)]
    assert (1, "wait", 0) in orders(feed(head, 0.2, report(1, IDLE)))  # so is each of its news
    assert orders(feed(head, 0.3, report(0, IDLE))) == []  # but not our own


def test_a_late_agent_hears_the_end():
    head = Head(a_job("n0 n1 n2"))
    trouble = Trouble(Origin.USAGE, "no script on n1")
    feed(head, 0.0, Started(), report(0, IDLE), report(1, IDLE, trouble=trouble))
    assert head.stage is Stage.ENDING
    late = sent(feed(head, 5.0, report(2, PREPARING)))[2]
    assert (late.goal.value, late.verdict.code) == ("end", EXIT_USAGE)


def test_an_agent_that_falls_silent_ends_a_job_that_needs_it():
    head = running(loss=10.0, wait=0.0)
    feed(head, 8.0, report(0, RUNNING, 0))
    feed(head, 10.1, Tick())
    assert head.stage is Stage.RUNNING
    assert orders(feed(head, 10.2, Tick())) == [(0, "stop", 0)]
    feed(head, 11.0, report(0, IDLE, 0))
    assert head.state.end.verdict.code == EXIT_LOST
    assert head.state.end.verdict.reason == (
        "the agent on n1 was lost: it has been silent for 10 s; 1 of 2 nodes are left, and the job "
        "needs 2 (--nnodes 1:2 continues without lost nodes)"
    )
    assert head.stage is Stage.ENDING


def test_a_closed_connection_is_a_loss_only_if_the_agent_is_dead():
    head = running()
    assert deeds(feed(head, 3.0, PeerClosed(1))) == [Probe(1, "10.0.0.2", 7001, "a1")]
    feed(head, 3.5, report(1, RUNNING, 0))
    assert deeds(feed(head, 3.6, AgentGone(1))) == []  # it has been heard since
    assert deeds(feed(head, 4.5, Tick())) == []
    feed(head, 5.0, PeerClosed(1))
    (said, *_) = deeds(feed(head, 5.1, AgentGone(1)))
    dead = "its host confirmed that it exited"
    assert said == Say(f"the agent on n1 was lost: {dead}")
    feed(head, 6.1, report(0, IDLE, 0))
    assert head.state.end.verdict.reason.startswith(
        said.text
    )  # it does not come back: nobody waits


def test_after_a_pause_what_was_heard_comes_before_the_clock():
    """One agent's message is no occasion to judge another, whose own may be next in the queue."""
    head = running("n0 n1 n2", loss=10.0)
    feed(head, 11.0, report(1, RUNNING, 0), report(2, RUNNING, 0), Tick())
    assert head.state.end.verdict is None


# The end


@pytest.mark.parametrize("signum", END_SIGNALS)
def test_a_signal_ends_the_job_everywhere(signum):
    head = running()
    effects = feed(head, 3.0, report(1, STOPPING, 0, stop_signal=signum))
    assert orders(effects)[0][1] == "stop"
    assert {order.signum for order in sent(effects).values()} == {signum}
    effects = feed(head, 4.0, *all_report(IDLE, 0))
    verdict = sent(effects)[1].verdict
    assert (verdict.code, verdict.reason) == (128 + signum, f"ended by {signum.name} on n1")


def test_the_end_waits_for_workers_elsewhere_whatever_the_trouble():
    """Trouble on one node does not shorten the grace that workers on another have to save."""
    head = running()
    trouble = Trouble(Origin.TROUBLE, "the fork server on n1 was killed")
    feed(head, 3.0, report(1, PREPARING, 0, trouble=trouble))
    assert head.stage is Stage.STOPPING
    feed(head, 3.1, report(0, STOPPING, 0))
    assert head.stage is Stage.STOPPING
    feed(head, 15.0, report(0, IDLE, 0))
    assert head.stage is Stage.ENDING


def test_parting_is_limited():
    head = running(goodbye=10.0)
    feed(head, 3.0, *all_report(DONE, 0))
    feed(head, 3.1, report(0, ENDED, 0))
    assert head.stage is Stage.ENDING
    feed(head, 13.0, Tick())
    assert head.stage is Stage.ENDED


def test_parting_is_not_put_off_by_a_spare_that_never_came():
    settings = {"most": 2, "loss": 100.0, "last_call": 30.0, "goodbye": 10.0}
    for over, left in ((20.0, False), (40.0, True)):
        head = Head(a_job("n0 n1 n2", **settings))
        feed(head, 0.0, Started(), report(0, IDLE), report(1, IDLE))
        feed(head, 4.0, Tick(), CheckpointChosen(""))
        feed(head, 5.0, report(0, RUNNING, 0), report(1, RUNNING, 0), Tick())
        feed(head, over, report(0, DONE, 0), report(1, DONE, 0))
        feed(head, over, report(0, ENDED, 0), report(1, ENDED, 0))
        assert (head.stage is Stage.ENDED) == left


def test_every_end_order_carries_the_verdict():
    """Also when the last beat and the end of the parting fall on the same moment."""
    head = running(goodbye=10.0, beat=1.0)
    effects = feed(head, 3.0, *all_report(DONE, 0))
    effects += [e for t in range(31) for e in feed(head, 3.0 + t, Tick())]
    ends = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Order)]
    assert ends
    assert all(order.verdict is not None for order in ends if order.goal.value == "end")


def test_an_agent_of_a_later_launch_in_the_same_step_is_not_taken_for_the_one_before():
    head = running()
    stranger = report(1, DONE, 0, incarnation="later", serial=900_000)
    assert feed(head, 2.0, stranger) == []
    assert head.state.roster[1].report.incarnation == "a1"


def test_one_that_was_given_up_in_error_still_hears_the_end():
    head = running(beat=1.0, loss=10.0, wait=0.0)
    feed(head, 9.0, report(0, RUNNING, 0))
    effects = feed(head, 20.0, Tick())
    effects += feed(head, 21.0, report(0, IDLE, 0))
    assert (1, "end", 1) in orders(effects)


def test_a_search_that_takes_long_is_mentioned():
    head = gathered()
    assert deeds(feed(head, 9.0, Tick())) == []
    said = "looking for a complete checkpoint (10 s so far)"
    assert deeds(feed(head, 10.0, Tick())) == [Say(said)]
    assert deeds(feed(head, 11.0, Tick())) == []


def test_a_script_at_fault_is_advised_upon_once():
    head = running(max_restarts=2)
    facts = []
    for number in range(2):
        words = f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {number}.00 GiB"
        exits = (WorkerExit(2, 1, 0, 0.0, stopped=False, tail=words),)
        effects = feed(head, 1.0, report(1, STOPPING, number, exits=exits))
        effects += feed(head, 1.0, *all_report(IDLE, number))
        effects += feed(head, 1.0, CheckpointChosen(""), *all_report(RUNNING, number + 1))
        facts += [effect.fact for effect in effects if isinstance(effect, Record)]
    console = Console()
    lines = [line for fact in facts for line in console.lines(fact)]
    assert [line.partition(":")[0] for line in lines] == [
        "rank 2 on n1 exited with code 1; restart 1 of 2",
        "advice",
        "training begins again, unless the script finds its checkpoints itself (--checkpoint-dir "
        "DIR gives it the newest one in HPCLAUNCH_CHECKPOINT)",
        "rank 2 on n1 exited with code 1; restart 2 of 2",
    ]
