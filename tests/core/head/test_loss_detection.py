"""Stories of lost nodes: spares, fewer nodes, those that come back, and leases in between."""

from __future__ import annotations

import pytest
from story import (
    a_job,
    a_member,
    deeds,
    failed,
    feed,
    orders,
    report,
    reports,
    run,
    said,
    stop,
    wait,
)

from hpclaunch.core.head.head import Head
from hpclaunch.core.protocol.effects import (
    ChooseCheckpoint,
    KeepWorkers,
    KillWorkers,
    Record,
    Send,
    StopWorkers,
)
from hpclaunch.core.protocol.events import (
    AgentGone,
    CheckpointChosen,
    HeadClosed,
    HeadReached,
    LeaseOver,
    PeerClosed,
    Signalled,
    Started,
    StoreListening,
    Tick,
)
from hpclaunch.core.protocol.facts import RoundEnded
from hpclaunch.core.protocol.model import Goal, Phase
from hpclaunch.core.protocol.stages import Stage
from hpclaunch.core.protocol.timing import DEFAULTS
from hpclaunch.observe.end_causes import of_round

IDLE, RUNNING, STOPPING = Phase.IDLE, Phase.RUNNING, Phase.STOPPING
DONE, ENDED = Phase.DONE, Phase.ENDED
DEAD = "its host confirmed that it exited"


def running(hosts, **settings):
    settings = {"loss": 3.0, "beat": 0.5, "wait": 60.0} | settings
    head = Head(a_job(hosts, **settings))
    count = len(hosts.split())
    feed(head, 0.0, Started(), *(report(i, IDLE) for i in range(count)))
    effects = feed(head, 0.0, CheckpointChosen(""))
    there = parts(effects)
    feed(head, 0.1, *(report(i, RUNNING, 0) for i in there))
    return head


def parts(effects):
    sent = [e for e in effects if isinstance(e, Send)]
    return {e.to: e.message.assignment for e in sent if e.message.assignment is not None}


def end_of_round(effects):
    facts = (e.fact for e in effects if isinstance(e, Record))
    (ended,) = (fact for fact in facts if isinstance(fact, RoundEnded))
    return ended


def keep_up(head, now, *agents, number=0):
    feed(head, now, *(report(i, RUNNING, number) for i in agents))


def test_a_spare_takes_the_ranks_of_a_lost_node():
    head = running("n0 n1 n2", most=2, fewest=2)
    assert [p.place.index for p in head.state.roster if p.assignment] == [0, 1]
    feed(head, 1.0, PeerClosed(1))
    effects = feed(head, 1.1, AgentGone(1))
    assert said(effects) == [f"the agent on n1 was lost: {DEAD}"]
    assert set(orders(effects)) == {(0, "stop", 0), (2, "stop", 0)}
    assert ChooseCheckpoint() in feed(head, 1.2, report(0, IDLE, 0), report(2, IDLE, 0))
    assert not parts(feed(head, 1.3, CheckpointChosen("/c/1.pt")))
    assert head.next_deadline() == 1.1 + DEFAULTS.killing  # its workers may take that long
    effects = feed(head, 1.1 + DEFAULTS.killing, Tick())
    assert "continuing with n2 and without n1: 2 nodes" in said(effects)
    assert {i: (p.first_rank, p.restarts) for i, p in parts(effects).items()} == {
        0: (0, 0),
        2: (2, 0),
    }
    assert head.state.budget.total == 0


def test_a_spare_that_is_lost_disturbs_nobody():
    head = running("n0 n1 n2", most=2)
    feed(head, 1.0, PeerClosed(2))
    effects = feed(head, 1.1, AgentGone(2))
    assert said(effects) == [f"the agent on n2 was lost: {DEAD}"]
    assert head.stage is Stage.RUNNING


def test_fewer_nodes_continue_and_one_that_was_cut_off_comes_back():
    head = running("n0 n1 n2", fewest=2)
    keep_up(head, 2.9, 0, 1)
    effects = feed(head, 3.2, Tick())
    assert said(effects) == ["the agent on n2 was lost: it has been silent for 3 s"]
    feed(head, 3.3, report(0, IDLE, 0), report(1, IDLE, 0))
    effects = feed(head, 3.4, CheckpointChosen(""))
    assert {p.world_size for p in parts(effects).values()} == {4}
    # Its agent was stopped meanwhile, and does not know: its workers are those of a lost world.
    effects = feed(head, 5.0, report(2, RUNNING, 0))
    (answer,) = [e.message for e in effects if getattr(e, "to", None) == 2]
    assert (answer.goal, answer.round, answer.keep) == (Goal.STOP, 0, 0)  # it renews no lease
    effects = feed(head, 5.2, report(2, IDLE, 0))
    assert said(effects) == ["n2 is back"]
    assert head.stage is Stage.RUNNING  # and takes part from the next round on
    effects = feed(head, 6.0, report(0, STOPPING, 1, exits=(failed(0),)))
    assert head.stage is Stage.STOPPING
    feed(head, 6.1, *(report(i, IDLE, 1) for i in (0, 1)))
    effects = feed(head, 6.2, CheckpointChosen(""))
    assert {i: p.first_rank for i, p in parts(effects).items()} == {0: 0, 1: 2, 2: 4}
    assert head.state.budget.total == 1  # of the failure alone


def test_a_node_that_is_back_before_the_round_has_ended_was_its_cause():
    head = running("n0 n1 n2", fewest=2)
    keep_up(head, 2.9, 0, 1)
    feed(head, 3.2, Tick())
    feed(head, 3.3, report(0, STOPPING, 0), report(1, STOPPING, 0))
    assert said(feed(head, 4.2, report(2, IDLE, 0))) == ["n2 is back"]
    ended = end_of_round(feed(head, 4.5, report(0, IDLE, 0), report(1, IDLE, 0)))
    assert of_round(ended).text == "the agent on n2 was lost: it has been silent for 3 s"


def test_one_that_comes_back_and_falls_silent_at_once_is_lost_again():
    """With one other agent, nothing else makes the head check for silence."""
    head = running("n0 n1", fewest=1, loss=3.0)
    feed(head, 3.2, Tick())
    feed(head, 3.3, report(0, IDLE, 0))
    feed(head, 3.4, CheckpointChosen(""))
    assert said(feed(head, 5.0, report(1, IDLE, 0))) == ["n1 is back"]
    assert said(feed(head, 8.1, Tick())) == ["the agent on n1 was lost: it has been silent for 3 s"]


def test_a_pause_that_ends_once_the_checkpoint_is_chosen():
    """The round begins then, and not with the next beat or message."""
    head = running("n0 n1 n2", fewest=1)
    feed(head, 1.0, report(0, STOPPING, 0, exits=(failed(0),)))
    assert ChooseCheckpoint() in feed(head, 1.1, *(report(i, IDLE, 0) for i in range(3)))
    feed(head, 1.2, PeerClosed(2), AgentGone(2))
    feed(head, 1.3, CheckpointChosen(""))
    assert head.next_deadline() == 1.2 + DEFAULTS.killing
    assert set(parts(feed(head, 1.2 + DEFAULTS.killing, Tick()))) == {0, 1}


def test_a_loss_does_not_shorten_the_time_that_a_node_is_given():
    """One node failed three times in a row and is waited for; another node dies meanwhile."""
    head = running("n0 n1 n2", fewest=2, loss=100.0, beat=100.0)
    for number in range(3):
        at = 1.0 + number
        failure = failed(2, code=137, signum=9)
        feed(head, at, report(1, STOPPING, number, exits=(failure,)))
        effects = feed(head, at + 0.1, *(report(i, IDLE, number) for i in range(3)))
        if number < 2:
            feed(head, at + 0.2, CheckpointChosen(""))
            feed(head, at + 0.3, *(report(i, RUNNING, number + 1) for i in range(3)))
    assert ChooseCheckpoint() not in effects
    assert head.next_deadline() == 3.1 + 1.0
    feed(head, 3.2, PeerClosed(2), AgentGone(2))
    assert head.next_deadline() == 3.1 + 1.0
    assert ChooseCheckpoint() not in feed(head, 3.2 + DEFAULTS.killing, Tick())
    assert ChooseCheckpoint() in feed(head, 4.1, Tick())


def test_the_end_is_sent_to_one_that_is_only_silent():
    """A silent agent would find no head, take it for dead, and continue by itself."""
    head = running("n0 n1 n2", fewest=1, goodbye=10.0)
    keep_up(head, 2.9, 0, 1)
    feed(head, 3.2, Tick())
    feed(head, 3.3, report(0, IDLE, 0), report(1, IDLE, 0))
    feed(head, 3.4, CheckpointChosen(""))
    feed(head, 3.9, report(0, DONE, 1))
    effects = feed(head, 4.0, report(1, DONE, 1))
    ends = [i for i, goal, _ in orders(effects) if goal == "end"]
    assert ends == [0, 1, 2]
    feed(head, 4.1, *(report(i, ENDED, 1) for i in (0, 1)))
    assert head.stage is Stage.ENDING
    assert (2, "end", 1) in orders(feed(head, 6.0, report(2, IDLE, 0)))
    feed(head, 6.1, report(2, ENDED, 0))
    assert head.stage is Stage.ENDED


def test_too_few_are_left_and_the_job_waits_for_those_that_may_come_back():
    head = running("n0 n1", fewest=2, wait=90.0)
    keep_up(head, 3.0, 0)
    effects = feed(head, 3.2, Tick())
    effects += feed(head, 3.3, report(0, IDLE, 0))
    assert said(effects)[-1] == "waiting for n1: 1 of 2 nodes are here; 90 s more"
    assert said(feed(head, 63.3, Tick())) == ["waiting for n1: 1 of 2 nodes are here; 30 s more"]
    assert head.state.end.verdict is None
    feed(head, 70.0, report(1, IDLE, 0))
    assert head.stage is Stage.CHOOSING


def test_nobody_waits_for_an_unfit_node():
    """One node is unfit and stays so; that another one has not come yet changes nothing."""
    head = Head(a_job("n0 n1 n2", fewest=3, health=True))
    feed(head, 0.0, Started(), report(0, IDLE), report(1, IDLE, unfit="its disk is full"))
    assert head.state.end.verdict.reason.startswith("n1: its disk is full; 2 of 3 nodes are left")
    head = Head(a_job("n0 n1 n2", fewest=2, health=True))
    feed(head, 0.0, Started(), report(0, IDLE), report(1, IDLE, unfit="its disk is full"))
    assert head.state.end.verdict is None


def test_reports_do_not_change_the_roster_while_too_few_nodes_are_left():
    """Each change makes the head compute the use of all seats again."""
    head = running("n0 n1 n2")
    keep_up(head, 3.0, 0, 1)
    feed(head, 3.2, Tick(), report(0, IDLE, 0), report(1, IDLE, 0))
    assert head.stage is Stage.RENDEZVOUS
    before = head.state.roster.changes
    feed(head, 4.0, report(0, IDLE, 0), report(1, IDLE, 0), Tick())
    assert head.state.roster.changes == before


def test_only_the_first_report_of_an_unfit_node_changes_the_roster():
    head = running("n0 n1 n2", fewest=2)
    before = head.state.roster.changes
    for _ in range(3):
        feed(head, 1.0, report(2, STOPPING, 0, unfit="its disk is full"))
        assert head.state.roster.changes == before + 1


def test_the_wait_has_an_end():
    head = running("n0 n1", fewest=2, wait=5.0)
    keep_up(head, 3.0, 0)
    feed(head, 3.2, Tick())
    feed(head, 3.3, report(0, IDLE, 0))
    feed(head, 8.4, Tick())
    assert "1 of 2 nodes are left, and the job needs 2" in head.state.end.verdict.reason


def test_one_that_hears_nothing_is_lost_once_its_lease_is_over():
    head = running("n0 n1 n2", fewest=2)

    def beat(now):  # n2 is heard, and answers no order
        return feed(head, now, report(1, RUNNING, 0), report(2, RUNNING, 0, heard=0), Tick())

    keep_up(head, 0.2, 1, 2)
    for now in (1.0, 2.0, 3.0, 4.0, 4.4):
        beat(now)
    *_, answer = [e.message for e in beat(5.0) if getattr(e, "to", None) == 2]
    assert answer.keep == 0
    for now in (6.0, 7.0, 7.3):
        assert said(beat(now)) == []
    assert said(beat(8.0)) == ["the agent on n2 was lost: it reports, but no order reaches it"]


def test_those_who_died_count_for_the_head_that_they_followed():
    """Dead agents have followed no other head since, and never will."""
    head = running("n0 n1 n2", fewest=1)
    feed(head, 1.0, *(event(i) for i in (1, 2) for event in (PeerClosed, AgentGone)))
    feed(head, 1.5, report(0, IDLE, 0))
    assert set(parts(feed(head, 1.6, CheckpointChosen("")))) == {0}
    feed(head, 99.9, Tick())
    assert head.state.lease.holds(100.0)


def test_those_who_are_silent_may_follow_another():
    head = running("n0 n1 n2", fewest=1, wait=30.0)
    feed(head, 0.5, Tick())  # they have answered, and join the configuration
    keep_up(head, 3.0, 0)
    feed(head, 3.2, Tick())
    assert not head.state.lease.holds(0.1 + head.timing.vote_lease)
    assert said(feed(head, 8.0, report(0, IDLE, 0), Tick())) == []
    words = "waiting for n1, n2: no quorum without them; 30 s more"
    assert said(feed(head, 11.0, Tick())) == [words]
    assert head.stage is Stage.RENDEZVOUS
    feed(head, 41.0, Tick())
    assert head.state.end.verdict.reason == (
        "no quorum without n1, n2: they cannot be reached, and may continue the job"
    )


def test_a_consequence_of_a_lost_node_costs_no_restart():
    """The peers of a lost node fail long before the loss is known."""
    head = running("n0 n1 n2", fewest=2, max_restarts=0)
    feed(head, 1.0, PeerClosed(2))
    feed(head, 1.1, report(0, STOPPING, 0, exits=(failed(0),)))
    feed(head, 1.2, report(0, IDLE, 0, exits=(failed(0),)), report(1, IDLE, 0))
    assert head.stage is Stage.STOPPING
    feed(head, 1.3, AgentGone(2))
    feed(head, 1.3 + DEFAULTS.killing, Tick())
    assert (head.stage, head.state.budget.total, head.state.end.verdict) == (
        Stage.CHOOSING,
        0,
        None,
    )


def fail(head, number, index, rank, agents):
    """Kill a worker of this agent, and let all agents settle."""
    exits = (failed(rank, 137, 9),)
    effects = feed(head, 5.0, report(index, STOPPING, number, exits=exits))
    effects += feed(head, 5.0, *(report(i, IDLE, number) for i in agents if i != index))
    effects += feed(head, 5.0, report(index, IDLE, number, exits=exits))
    return effects + feed(head, 5.0, CheckpointChosen(""))


def test_a_node_whose_workers_alone_fail_makes_place_for_a_spare():
    head = running("n0 n1 n2", most=2, fewest=2, loss=100.0)
    assert set(parts(fail(head, 0, 1, 2, (0, 1)))) == {0, 1}
    effects = fail(head, 1, 1, 2, (0, 1))
    assert "n1 is cordoned: its workers have failed again, and there is a spare" in said(effects)
    assert set(parts(effects)) == {0, 2}


@pytest.mark.parametrize("wait", [0.0, 60.0])
def test_without_a_spare_it_is_better_than_nothing(wait):
    head = running("n0 n1 n2", most=2, fewest=2, loss=100.0, max_restarts=9, wait=wait)
    fail(head, 0, 1, 2, (0, 1))
    fail(head, 1, 1, 2, (0, 1))
    feed(head, 6.0, PeerClosed(2))
    feed(head, 6.1, AgentGone(2))
    feed(head, 6.6, report(0, IDLE, 2))
    assert set(parts(feed(head, 6.7, CheckpointChosen("")))) == {0, 1}


def test_failures_here_and_there_are_nobodys():
    head = running("n0 n1 n2", most=2, fewest=2, loss=100.0)
    fail(head, 0, 1, 2, (0, 1))
    effects = fail(head, 1, 0, 0, (0, 1))
    assert set(parts(effects)) == {0, 1}


# Nodes with several agents


def two_on_n1(**settings):
    head = Head(a_job("n0 n1 n1 n2", **{"loss": 3.0, "beat": 0.5, "fewest": 2} | settings))
    feed(head, 0.0, Started(), *(of_host(i, IDLE) for i in range(4)), CheckpointChosen(""))
    feed(head, 0.1, *(of_host(i, RUNNING, 0) for i in range(4)))
    return head


def of_host(index, *args):
    return report(index, *args, host=("n0", "n1", "n1", "n2")[index])


def test_a_node_with_several_agents_is_lost_once_and_back_once():
    head = two_on_n1()
    feed(head, 2.9, of_host(3, RUNNING, 0))
    lost = "the agent on n1 was lost: it has been silent for 3 s"
    assert said(feed(head, 3.2, Tick())) == [lost]
    assert said(feed(head, 3.3, of_host(1, IDLE, 0))) == []
    assert said(feed(head, 3.4, of_host(2, IDLE, 0))) == ["n1 is back"]
    ended = end_of_round(feed(head, 3.5, of_host(0, IDLE, 0), of_host(3, IDLE, 0)))
    assert [node.host for node in ended.lost] == ["n1"]
    feed(head, 3.6, CheckpointChosen(""))
    feed(head, 6.3, of_host(3, RUNNING, 1))
    assert said(feed(head, 6.5, Tick())) == [lost]


def test_another_agent_of_a_lost_node_is_no_second_loss():
    head = two_on_n1()
    assert said(feed(head, 1.0, PeerClosed(1), AgentGone(1)))
    assert said(feed(head, 1.1, PeerClosed(2), AgentGone(2))) == []


def test_a_node_is_heard_again_once_all_its_agents_are():
    head = two_on_n1(loss=300.0, silence_notice=10.0)
    feed(head, 5.0, of_host(3, RUNNING, 0))
    assert said(feed(head, 10.2, Tick()))
    assert said(feed(head, 12.0, of_host(1, RUNNING, 0))) == []
    assert said(feed(head, 12.1, of_host(2, RUNNING, 0))) == ["n1 is heard again"]


# A member


def member_in_a_round():
    member = a_member(loss=3.0)
    feed(member, 0.0, Started(), StoreListening(4001), HeadReached(0))
    feed(member, 0.5, wait())
    (sent,) = reports(feed(member, 1.5, Tick()))
    return member, sent.serial


def test_every_answer_renews_the_lease_from_when_the_report_was_sent():
    member, serial = member_in_a_round()
    effects = feed(member, 1.9, run(0, heard=serial, keep=2.75))
    assert deeds(effects)[0] == KeepWorkers(1.5 + 2.75)
    effects = feed(member, 2.0, run(0, heard=serial, keep=2.75), wait(0, heard=serial + 1))
    assert not any(isinstance(e, KeepWorkers) for e in effects)  # nothing new, or no lease


def test_at_the_end_of_the_lease_the_fork_server_holds_the_workers_and_the_member_waits():
    member, _ = member_in_a_round()
    feed(member, 2.0, run(0))
    (sent,) = reports(feed(member, 3.9, Tick()))
    assert deeds(feed(member, 4.0, LeaseOver())) == []
    effects = feed(member, 4.2, wait(0, heard=sent.serial, keep=2.75))
    assert deeds(effects) == [KeepWorkers(3.9 + 2.75)]  # the head grants another one
    assert member.phase is RUNNING


def test_a_lease_does_not_resume_held_workers_that_are_to_be_stopped():
    """An old order has begun a round, and the head, which took this agent back as an idle one, has
    begun another without it."""
    member, serial = member_in_a_round()
    feed(member, 2.0, run(0), LeaseOver())
    effects = feed(member, 3.0, run(1, heard=serial, keep=2.75, assignment=None))
    assert deeds(effects) == [StopWorkers(), KeepWorkers(1.5 + 2.75)]


def test_workers_that_are_being_stopped_are_killed_when_their_lease_ends():
    member, _ = member_in_a_round()
    feed(member, 2.0, run(0), stop(0))
    assert deeds(feed(member, 4.0, LeaseOver())) == [KillWorkers()]


# With a long loss timeout, silence is reported to the user


PATIENT = {"loss": 300.0, "silence_notice": 10.0}


def test_silent_agents_are_reported_and_so_is_their_return():
    head = running("n0 n1 n2", **PATIENT)
    keep_up(head, 5.0, 1)
    assert said(feed(head, 10.0, Tick())) == []
    silent = "n2: silent for 10 s; counts as lost in 290 s (--loss-timeout)"
    assert said(feed(head, 10.2, Tick())) == [silent]
    assert said(feed(head, 12.0, Tick())) == []
    silent = "n1, n2: silent for 15 s; counts as lost in 285 s (--loss-timeout)"
    assert said(feed(head, 15.2, Tick())) == [silent]
    assert said(feed(head, 15.5, report(1, RUNNING, 0))) == ["n1 is heard again"]
    silent = "n2: silent for 75 s; counts as lost in 225 s (--loss-timeout)"
    keep_up(head, 74.0, 1)
    assert said(feed(head, 75.3, Tick())) == [silent]
    assert said(feed(head, 80.0, report(2, RUNNING, 0))) == ["n2 is heard again"]
    assert head.stage is Stage.RUNNING
    keep_up(head, 380.0, 1)
    assert said(feed(head, 380.2, Tick())) == [
        "the agent on n2 was lost: it has been silent for 300 s"
    ]


def test_a_job_that_asks_for_a_short_time_is_not_bothered():
    head = running("n0 n1", fewest=1, loss=3.0, silence_notice=10.0)
    assert said(feed(head, 3.2, Tick())) == ["the agent on n1 was lost: it has been silent for 3 s"]
    assert said(feed(head, 20.0, Tick())) == []


def a_patient_member(index):
    member = a_member("n0 n1 n2", index=index, **PATIENT)
    feed(member, 0.0, Started(), StoreListening(4001), HeadReached(0))
    feed(member, 1.0, wait(incarnation=member.own.incarnation))
    return member


def test_one_follower_says_that_the_head_is_silent():
    """The one that would lead next."""
    assert deeds(feed(a_patient_member(2), 60.0, Tick())) == []
    member = a_patient_member(1)
    silent = "the head on n0: it has been silent for 10 s; counts as lost in 293 s (--loss-timeout)"
    assert said(feed(member, 11.0, Tick())) == [silent]
    assert said(feed(member, 100.0, Tick())) == []
    assert said(feed(member, 101.0, wait())) == ["the head on n0 is heard again"]


def test_a_head_that_is_lost_already_is_not_called_silent():
    """The head's host has confirmed its death, or this agent did not run for a while."""
    assert said(feed(a_patient_member(1), 11.0, HeadClosed(0), AgentGone(0))) == []
    assert said(feed(a_patient_member(1), 1000.0, Tick())) == []


def test_who_is_asked_to_end_does_not_wait_for_a_silent_head():
    member = a_patient_member(2)
    feed(member, 20.0, Signalled(2))
    feed(member, 29.9, Tick())
    assert member.verdict is None
    feed(member, 30.0, Tick())
    why = "the head on n0 was lost: it has been silent for 29 s"
    assert (member.verdict.code, member.verdict.reason) == (130, f"ended by SIGINT; {why}")
