"""Stories of a head that is lost: who leads next, and who must not."""

from __future__ import annotations

import pytest
from crew import Crew
from story import a_job, feed, report

from hpclaunch.core.consensus.rotation import Rotation
from hpclaunch.core.control import Control
from hpclaunch.core.member.member import AgentStart
from hpclaunch.core.protocol.configuration import NOBODY
from hpclaunch.core.protocol.effects import Dial, Send
from hpclaunch.core.protocol.events import (
    HealthFound,
    Received,
    SearchFailed,
    Started,
    StoreListening,
    Tick,
    WorkerExited,
)
from hpclaunch.core.protocol.facts import CordonKind
from hpclaunch.core.protocol.messages import Hint, Order, PlaceGiven
from hpclaunch.core.protocol.model import EXIT_LOST, Goal, Grow, Origin, Phase, Trouble, Verdict
from hpclaunch.core.protocol.values import replace

DIED = 2.0  # when the incident of a story happens


def at_work(hosts, until=DIED, **settings):
    """Return a crew in its first round, whose job continues with however few agents are left."""
    crew = Crew(hosts, **{"fewest": 1} | settings)
    crew.start(*range(len(hosts.split())))
    crew.until(until)
    assert crew.heads == [0]
    assert set(crew.running.values()) == {0}
    return crew


def groups(crew, number):
    return {agent: part.group_rank for agent, part in crew.parts[number].items()}


@pytest.mark.parametrize("died", [11.0, 11.27, 11.54, 11.81])
def test_a_new_head_without_a_proof_waits_for_workers_whose_head_is_dead(died):
    """The voters had the proof, so they did not wait for the worker leases to end."""
    crew = at_work("n0 n1 n2 n3 n4 n5")
    crew.cut([1], [0])
    crew.until(died)
    crew.cut([4], [0, 1, 2, 3, 5])
    crew.kill(0)
    crew.until(died + 8)
    assert len(crew.heads) == 1
    assert crew.clashes == set()


# The line


def test_the_first_agent_of_each_node_can_lead_and_they_take_turns():
    line = Rotation(a_job("n0 n0 n1 n2 n2").places)
    assert [line.head_of(term) for term in range(5)] == [0, 2, 3, 0, 2]
    assert [agent in line for agent in range(5)] == [True, False, True, True, False]
    assert len(line) == 3


@pytest.mark.parametrize(
    ("after", "agent", "term"), [(0, 1, 1), (0, 2, 2), (0, 0, 3), (1, 0, 3), (7, 1, 10), (7, 2, 8)]
)
def test_the_next_term_of_an_agent(after, agent, term):
    line = Rotation(a_job("n0 n1 n2").places)
    assert line.next_term(after, agent) == term
    assert line.head_of(term) == agent


# The head dies


def searching(hosts, **settings):
    """Let a worker fail, so that the head looks for a checkpoint."""
    crew = at_work(hosts, **settings)
    crew.checkpoint = None
    crew.feed(0, WorkerExited(0, 1, 0))
    crew.until(4.0)
    crew.checkpoint = "/c/1.pt"
    return crew


FAILED = SearchFailed(
    Trouble(Origin.TROUBLE, "cannot look for checkpoints in /c: Input/output error")
)


def test_a_head_that_cannot_look_for_checkpoints_leaves_it_to_another():
    crew = searching("n0 n1 n2")
    crew.feed(0, FAILED)
    assert crew.verdicts[0] == Verdict(EXIT_LOST, FAILED.trouble.reason, Origin.TROUBLE)
    leaves = "the head on n0 leaves the job, and another takes over: "
    assert any(s.startswith(leaves) and s.endswith("Input/output error") for s in crew.said)
    crew.until(8.0)
    assert crew.heads == [1]
    assert crew.running.keys() == {1, 2}
    assert {part.checkpoint for part in crew.parts[max(crew.parts)].values()} == {"/c/1.pt"}
    assert crew.clashes == set()


@pytest.mark.parametrize("settings", [{"fewest": 3}, {"elects": False}])
def test_where_no_other_can_lead_the_job_ends(settings):
    crew = searching("n0 n1 n2", **settings)
    crew.feed(0, FAILED)
    crew.until(6.0)
    assert {verdict.reason for verdict in crew.verdicts.values()} == {FAILED.trouble.reason}
    assert crew.verdicts.keys() == {0, 1, 2}


def test_the_next_in_order_leads():
    crew = at_work("n0 n1 n2")
    crew.kill(0)
    crew.until(5.0)
    assert crew.heads == [1]
    assert crew.agents[1].head.state.orders.term == 1
    assert crew.said[:2] == [
        "the head on n0 was lost: n1 leads now",
        "continuing without n0: 2 nodes",
    ]
    assert [line.partition(",")[0] for line in crew.said[2:]] == ["training begins again"]
    # the old head may have begun round 1 without having reached any agent
    assert set(crew.parts) == {0, 2}
    assert groups(crew, 2) == {1: 1, 2: 0}
    assert crew.running == {1: 2, 2: 2}


@pytest.mark.parametrize("hosts", ["n0 n1", "n0 n1 n2", "n0 n1 n2 n3", "n0 n1 n2 n3 n4"])
def test_the_others_continue_without_a_head_that_died(hosts):
    crew = at_work(hosts)
    crew.kill(0)
    crew.until(5.0)
    assert (crew.heads, set(crew.running)) == ([1], set(crew.agents))


@pytest.mark.parametrize("died", [0.1, 0.6, 1.1])
def test_a_head_that_dies_as_soon_as_it_has_begun_is_succeeded(died):
    crew = at_work("n0 n1 n2", until=died)
    crew.kill(0)
    crew.until(5.0)
    assert (crew.heads, crew.running.keys()) == ([1], {1, 2})


def test_a_spare_can_lead_as_soon_as_it_has_come():
    crew = Crew("n0 n1 n2", most=2)
    crew.start(0, 2)
    crew.until(40.2)
    assert crew.running.keys() == {0, 2}
    crew.start(1)
    crew.until(40.21)
    crew.kill(0)
    crew.until(45.0)
    assert (crew.heads, crew.running.keys()) == ([1], {1, 2})


def test_of_two_nodes_none_continues_without_a_head_that_may_be_alive():
    crew = at_work("n0 n1")
    crew.kill(0, down=True)
    crew.until(20.0)
    assert not crew.heads


@pytest.mark.parametrize("down", [False, True])
def test_two_of_five_die_at_once(down):
    crew = at_work("n0 n1 n2 n3 n4")
    crew.kill(0, 1, down=down)
    crew.until(15.0)
    assert crew.heads == [2]
    assert crew.running == {2: 2, 3: 2, 4: 2}
    assert not crew.clashes


def test_a_new_head_leads_as_soon_as_the_others_follow_it():
    crew = at_work("n0 n1 n2", until=50.1)
    crew.kill(0)
    assert crew.agents[1].head.state.lease.holds(crew.now)
    crew.until(50.5)
    assert crew.running == {1: 2, 2: 2}


@pytest.mark.parametrize("loss", [3.0, 300.0])
def test_half_of_four_continue_if_the_head_is_proven_dead(loss):
    """The vote leases of the dead are not waited for: all others agree."""
    crew = at_work("n0 n1 n2 n3", loss=loss)
    crew.kill(0, 3)
    crew.until(15.0)
    assert crew.heads == [1]
    assert set(crew.running) == {1, 2}


@pytest.mark.parametrize("hosts", ["n0 n1 n2", "n0 n1 n2 n3 n4"])
def test_a_head_continues_alone_if_all_others_are_proven_dead(hosts):
    """The dead need not have the new configuration: they cannot follow another head."""
    crew = at_work(hosts)
    crew.kill(*range(1, len(crew.agents)))
    crew.until(15.0)
    assert (crew.heads, crew.running.keys()) == ([0], {0})


def test_one_continues_alone_after_the_deaths_of_all_others_one_by_one():
    crew = at_work("n0 n1 n2 n3")
    for dead in range(3):
        crew.kill(dead)
        crew.until(crew.now + 10.0)
    assert (crew.heads, crew.running.keys()) == ([3], {3})


def test_one_does_not_continue_alone_if_the_head_and_another_die_at_once():
    """The dead may have known of a configuration that lists others."""
    crew = at_work("n0 n1 n2")
    crew.kill(0, 1)
    crew.until(15.0)
    assert not crew.heads


def test_a_silent_head_is_succeeded_when_its_vote_lease_is_over():
    crew = at_work("n0 n1 n2")
    crew.kill(0, down=True)
    crew.until(DIED + crew.job.timing.vote_lease - crew.job.timing.beat)
    assert crew.heads == []
    crew.until(DIED + crew.job.timing.vote_lease + 2.0)
    assert crew.running == {1: 2, 2: 2}


def test_one_after_the_other():
    crew = at_work("n0 n1 n2 n3 n4")
    for dead in (0, 1):
        crew.kill(dead)
        crew.until(crew.now + 10.0)
    assert (crew.heads, crew.agents[2].head.state.orders.term) == ([2], 2)
    assert crew.running == {2: 4, 3: 4, 4: 4}


def test_a_spare_takes_the_ranks_of_the_head():
    crew = at_work("n0 n1 n2 n3", most=3, fewest=3)
    crew.kill(0)
    crew.until(5.0)
    assert groups(crew, 0) == {0: 0, 1: 1, 2: 2}
    assert groups(crew, 2) == {1: 1, 2: 2, 3: 0}


def test_a_spare_that_had_ranks_earlier_is_not_taken_for_the_one_that_has_them():
    """n2 had the ranks of n1 until n1 came back. The head dies once it has stopped the round."""
    crew = at_work("n0 n1 n2", most=2, fewest=2, loss=3.0)
    for gone in (1, 2):
        crew.cut([gone], [0, 1, 2])
        crew.until(crew.now + 10.0)
        crew.mend()
        crew.until(crew.now + 5.0)
    assert groups(crew, 2) == {0: 0, 1: 1}
    crew.checkpoint = None
    crew.feed(1, WorkerExited(2, 1, 0))
    crew.until(crew.now + 1.0)
    crew.checkpoint = ""
    crew.kill(0)
    crew.until(crew.now + 10.0)
    assert groups(crew, max(crew.parts)) == {2: 0, 1: 1}
    assert "continuing with n2 and without n0: 2 nodes" in crew.said


def test_all_agents_of_the_heads_node_are_lost_with_one():
    """The other agents of a node do not lead."""
    crew = at_work("n0 n0 n1 n1 n2")
    crew.kill(0)
    crew.until(10.0)
    assert crew.heads == [2]
    assert set(crew.running) == {2, 3, 4}


@pytest.mark.parametrize("first_round", [0, 7])
def test_a_new_head_does_not_point_out_the_numbers_of_workers_again(first_round):
    crew = Crew("n0 n1 n1 n2", fewest=1, first_round=first_round)
    crew.start(0, 1, 2, 3)
    crew.until(DIED)
    crew.kill(0)
    crew.until(15.0)
    assert len(crew.parts) == 2
    assert [line for line in crew.said if "different numbers of workers" in line] == [
        "the nodes have different numbers of workers: 2,4,2"
    ]


def test_only_nodes_that_a_new_head_has_heard_are_here():
    crew = at_work("n0 n1 n2 n3 n4 n5 n6", fewest=7)
    crew.cut([5, 6], [1, 2, 3, 4])
    crew.kill(0, down=True)
    crew.until(14.0)
    (line,) = [line for line in crew.said if "nodes are here" in line]
    assert line.startswith("waiting for n0, n5, n6: 4 of 7 nodes are here")


def test_the_end_names_a_lost_head_before_a_node_that_was_cordoned_earlier():
    crew = at_work("n0 n1 n2 n3", fewest=3, wait=0.0)
    crew.feed(3, HealthFound("GPU 0 does not answer"))
    crew.until(15.0)
    crew.kill(0)
    crew.until(40.0)
    ended = crew.verdicts[1]
    assert ended.origin is Origin.NODE_LOST
    first, second, _ = ended.reason.split("; ")
    assert first.startswith("the agent on n0 was lost: ")
    assert second == "n3: GPU 0 does not answer"


def test_a_node_that_a_new_head_has_heard_fit_is_cordoned_again():
    crew = at_work("n0 n1 n2 n3")
    crew.feed(3, HealthFound("GPU 0 is gone"))
    crew.until(15.0)
    crew.kill(3)
    crew.until(20.0)
    crew.kill(0)
    crew.until(21.0)
    crew.start(3, anew=True)
    crew.until(60.0)
    crew.feed(3, HealthFound("GPU 0 is gone"))
    crew.until(90.0)
    about = [line for line in crew.said if line.startswith("n3 is ")]
    cordoned = "n3 is cordoned: GPU 0 is gone"
    assert about == [cordoned, "n3 is back", cordoned]


def test_a_new_head_records_the_loss_of_no_node_again():
    crew = at_work("n0 n0 n1 n1 n2 n2 n3 n3")
    crew.kill(6, down=True)
    crew.until(20.0)
    crew.kill(0, 1, down=True)
    crew.until(60.0)
    crew.kill(7, down=True)
    crew.until(90.0)
    lost = [line.partition(" was lost")[0] for line in crew.said if " was lost" in line]
    assert lost == ["the agent on n3", "the head on n0"]


def test_the_end_names_the_last_head_that_was_lost_first():
    crew = at_work("n0 n1 n2 n3 n4", fewest=4, wait=0.0)
    crew.kill(0)
    crew.until(20.0)
    assert crew.heads == [1]
    crew.kill(1)
    crew.until(40.0)
    reason = crew.verdicts[2].reason
    first, second, _ = reason.split("; ")
    assert first.startswith("the agent on n1 was lost: ")
    assert second.startswith("the agent on n0 was lost: ")


def test_restarts_are_counted_on():
    crew = at_work("n0 n1 n2", max_restarts=1)
    crew.feed(1, WorkerExited(2, 1, 0, "boom"))
    crew.until(3.0)
    crew.kill(0)
    crew.until(6.0)
    assert {part.restarts for part in crew.parts[3].values()} == {1}
    crew.feed(1, WorkerExited(2, 1, 0, "boom again"))
    crew.until(20.0)
    assert {(verdict.code, verdict.restarts) for verdict in crew.verdicts.values()} == {(1, 1)}
    assert "and the only restart is used up" in crew.verdicts[1].reason


def fail(crew, agent, words):
    """The first worker of the agent does. Then the next round runs, or the job has ended."""
    rank = 2 * crew.parts[crew.running[agent]][agent].group_rank
    crew.feed(agent, WorkerExited(rank, 1, 0, words))
    crew.until(crew.now + 1.0)


def test_a_checkpoint_that_the_job_has_resumed_from_is_no_progress_for_a_new_head():
    crew = at_work("n0 n1 n2", max_restarts=2, saves=True)
    crew.checkpoint = "/c/1.pt"
    fail(crew, 1, "boom")
    fail(crew, 1, "another boom")  # the checkpoint has given the first restart back
    assert crew.agents[0].head.state.budget.used == 2
    crew.kill(0)
    crew.until(8.0)
    budget = crew.agents[1].head.state.budget
    assert (budget.total, budget.used) == (2, 2)
    fail(crew, 2, "yet another")
    assert {verdict.code for verdict in crew.verdicts.values()} == {1}
    assert "all 2 restarts are used up" in crew.verdicts[1].reason


def test_a_newer_checkpoint_is_progress_for_a_new_head_too():
    crew = at_work("n0 n1 n2", max_restarts=2, saves=True)
    crew.checkpoint = "/c/1.pt"
    fail(crew, 1, "boom")
    fail(crew, 1, "another boom")
    crew.checkpoint = "/c/2.pt"
    crew.kill(0)
    crew.until(8.0)
    budget = crew.agents[1].head.state.budget
    assert (budget.total, budget.used) == (2, 0)


def test_a_job_that_is_about_to_end_ends_under_a_new_head():
    """The restarts were used up, and nobody knew yet whether there was a new checkpoint."""
    crew = at_work("n0 n1 n2", max_restarts=1, saves=True)
    fail(crew, 1, "boom")
    crew.checkpoint = None
    fail(crew, 2, "another boom")
    assert crew.running == {}
    crew.checkpoint = ""
    crew.kill(0)
    crew.until(10.0)
    verdict = crew.verdicts[1]
    assert verdict == crew.verdicts[2]
    assert verdict.reason == (
        "rank 4 on n2 exited with code 1 in round 1, and the only restart is used up"
    )
    assert (verdict.cause.tail, verdict.restarts) == ("another boom", 1)


def test_a_new_head_knows_how_the_round_before_failed():
    crew = at_work("n0 n1 n2", max_restarts=9)
    fail(crew, 1, "boom")
    crew.kill(0)
    crew.until(6.0)
    fail(crew, 1, "boom")
    repeated = "the round before failed in the same way, with no checkpoint in between"
    assert repeated in crew.verdicts[1].reason


def test_a_new_head_knows_whose_fault_the_last_failures_were():
    crew = at_work("n0 n1 n2 n3", most=2, max_restarts=9)
    fail(crew, 1, "boom")
    crew.kill(0)
    crew.until(6.0)
    assert 1 in crew.running
    fail(crew, 1, "another boom")
    assert "n1 is cordoned: its workers have failed again, and there is a spare" in crew.said
    assert set(crew.running) == {2, 3}


def test_a_new_head_knows_which_nodes_are_cordoned():
    crew = at_work("n0 n1 n2 n3 n4", most=2, max_restarts=9)
    fail(crew, 1, "boom")
    fail(crew, 1, "another boom")
    assert set(crew.running) == {0, 2}
    crew.kill(0)
    crew.until(10.0)
    assert set(crew.running) == {2, 3}


def test_a_new_head_knows_why_each_node_is_cordoned():
    crew = at_work("n0 n1 n2 n3 n4", most=2)
    cordoned = {3: CordonKind.DRAINING, 4: CordonKind.SLOW}
    for agent, kind in cordoned.items():
        crew.agents[0].head.state.roster[agent].cordoned = kind
    crew.feed(0, WorkerExited(0, 9, 0))
    crew.until(5.0)
    crew.kill(0)
    crew.until(15.0)
    (head,) = crew.heads
    roster = crew.agents[head].head.state.roster
    assert {peer.place.index: peer.cordoned for peer in roster if peer.cordoned} == cordoned


def test_rounds_follow_one_another_though_many_have_died():
    """The configuration is settled without the word of those who will never say any more."""
    crew = at_work("n0 n1 n2")
    crew.kill(1, 2)
    crew.until(5.0)
    assert crew.running == {0: 1}
    crew.feed(0, WorkerExited(0, 137, 9))
    crew.until(10.0)
    assert crew.running == {0: 2}


def test_a_round_waits_for_the_leases_of_the_dead_head():
    """The head may have renewed the worker lease of an agent that is cut off until it died."""
    crew = at_work("n0 n1 n2 n3 n4")
    crew.cut([4], [0, 1, 2, 3])
    crew.kill(0)
    crew.until(10.0)
    assert set(crew.running) == {1, 2, 3}
    assert not crew.clashes


# Who must not


def test_a_minority_does_not_continue():
    crew = at_work("n0 n1 n2", wait=30.0)
    crew.cut([2], [0, 1])
    crew.until(20.0)
    assert (crew.heads, crew.running) == ([0], {0: 1, 1: 1})
    assert (
        "n2 waits for a head: the one on n0 was lost (it has been silent for 5 s), and there is no "
        "majority for another; 25 s more"
    ) in crew.said
    crew.until(50.0)
    assert crew.verdicts[2].code == EXIT_LOST
    assert "too few agents are left to elect another" in crew.verdicts[2].reason
    assert crew.running == {0: 1, 1: 1}


def test_a_head_without_a_majority_waits_and_ends():
    crew = at_work("n0 n1 n2", wait=30.0)
    crew.cut([0], [1, 2])
    crew.until(20.0)
    assert crew.running == {1: 2, 2: 2}
    assert not crew.clashes
    words = "waiting for n1, n2: no quorum without them; 30 s more"
    assert words in crew.said
    crew.until(50.0)
    assert crew.verdicts[0].reason.startswith("no quorum without n1, n2: ")
    assert crew.heads == [1]


def test_a_head_that_was_cut_off_steps_down():
    crew = at_work("n0 n1 n2")
    crew.cut([0], [1, 2])
    crew.until(12.0)
    assert crew.heads == [0, 1]
    assert 0 not in crew.running
    crew.mend()
    crew.until(15.0)
    assert crew.heads == [1]
    assert crew.follows(0) == 1
    words = ["n0 is back", "n0 no longer leads: n1 does, with the agents that n0 could not reach"]
    assert set(words) <= set(crew.said)
    assert crew.running == {1: 2, 2: 2}  # it takes part from the next round on
    crew.feed(1, WorkerExited(2, 137, 9))
    assert crew.running == {0: 3, 1: 3, 2: 3}


def test_a_head_that_steps_down_names_the_next_head_to_the_others():
    """The old head may leave before its followers report, and no proof of its death need follow."""
    crew = at_work("n0 n1 n2")
    crew.cut([0], [1, 2])
    crew.until(12.0)
    written = replace(crew.agents[1].head.state.lease.configuration, tenure=1)
    order = Order(term=1, serial=1, incarnation="a0", goal=Goal.WAIT, round=2, tenure=1)
    order = replace(order, configuration=written)
    done = crew.agents[0].handle(Received(1, order, "10.0.0.2"), 12.1)
    hints = [e for e in done if isinstance(e, Send) and isinstance(e.message, Hint)]
    assert hints == [Send(agent, Hint(1, led=True)) for agent in (1, 2)]


def test_all_are_cut_off_for_a_while_and_the_head_stays():
    crew = at_work("n0 n1 n2", fewest=3)
    crew.cut([0], [1, 2])
    crew.cut([1], [2])
    crew.until(12.0)
    assert (crew.heads, crew.running) == ([0], {})
    crew.mend()
    crew.until(16.0)
    assert (crew.heads, crew.running) == ([0], {0: 1, 1: 1, 2: 1})
    assert not crew.clashes


def test_one_that_dies_between_two_halves_is_no_reason_to_continue():
    """The agents that continued without the old head had the vote of the one that died."""
    crew = at_work("n0 n1 n2 n3 n4")
    crew.cut([0, 1], [2, 3, 4])
    crew.until(15.0)
    assert (crew.heads, set(crew.running)) == ([0, 2], {2, 3, 4})
    crew.mend([0, 1], [4])
    crew.kill(4)
    crew.until(35.0)
    assert set(crew.running) == {2, 3}
    assert not crew.clashes


def test_half_of_four_do_not_continue_if_the_head_has_followed_another():
    """n3 may lead with the vote of the old head, whose death says nothing about that."""
    crew = Crew("n0 n1 n2 n3", fewest=1)
    crew.start(0)
    crew.until(0.1)
    crew.start(1, 2, 3)
    crew.until(DIED)
    crew.cut([0], [1, 2, 3])
    crew.cut([3], [1, 2])
    crew.until(8.15)
    crew.mend([0], [3])  # as both ask n3 to lead
    crew.until(15.0)
    crew.mend([0], [1, 2])
    crew.kill(0)
    crew.until(30.0)
    assert not crew.clashes


# Who comes later


def test_a_late_starter_finds_the_head_of_now():
    crew = Crew("n0 n1 n2 n3", fewest=2, last_call=1.0)
    crew.start(0, 1, 2)
    crew.until(3.0)
    crew.kill(0)
    crew.until(6.0)
    crew.start(3)
    crew.until(20.0)
    assert crew.follows(3) == 1
    assert crew.seeking(3) == NOBODY


def test_one_that_is_behind_learns_who_leads():
    crew = at_work("n0 n1 n2 n3 n4")
    crew.cut([4], [0, 1, 2, 3])
    crew.kill(0)
    crew.until(10.0)
    while crew.seeking(4) % 5 != 2:
        crew.until(crew.now + 0.1)
    crew.mend()  # as it asks n2, which follows n1
    crew.until(crew.now + 0.6)
    assert crew.follows(4) == 1


# What a head that is cut off has to know of its own decisions


def spares_are_lost():
    """Agents 0 to 2 train, and have agreed to continue without the spares 3 and 4."""
    crew = at_work("n0 n1 n2 n3 n4", most=3)
    crew.cut([3, 4], [0, 1, 2])
    crew.until(10.0)
    return crew


def test_a_head_has_every_configuration_that_it_has_written():
    """The head's follower has it too, and votes with it once the head has stepped down."""
    crew = spares_are_lost()
    written = crew.agents[0].head.state.lease.configuration
    assert written.agents == {0, 1, 2}
    assert written.old is None
    assert crew.agents[0].member.follower.configuration == written


def test_a_head_does_not_continue_with_those_who_were_voted_out():
    """Two of the three voters are a majority; with agents who know of an older configuration only,
    the head that is cut off from them is none."""
    crew = spares_are_lost()
    crew.cut([0], [1, 2])
    crew.mend([0], [3, 4])
    crew.until(40.0)
    assert set(crew.running) == {1, 2}
    assert not crew.clashes
    assert crew.agents[0].member.follower.is_deposed


def test_whoever_follows_a_new_head_can_vote_for_the_next_one_at_once():
    crew = at_work("n0 n1 n2 n3")
    crew.kill(0)
    crew.until(DIED + 0.3)
    assert crew.heads == [1]
    assert all(crew.agents[a].member.follower.configuration for a in (1, 2, 3))


# A first agent that is started anew


def test_a_first_agent_that_is_started_anew_asks_the_others_who_leads():
    control = Control(AgentStart(a_job("n0 n1 n2"), 0, 1, "10.0.0.1", "b0", port=7000, anew=True))
    effects = feed(control, 0.0, Started(), StoreListening(4000), HealthFound())
    assert Dial((1, 2), ("", "")) in effects
    hint = Received(2, Hint(4, led=True), "10.0.0.3")
    assert control.head is None
    feed(control, 0.5, hint)
    order = Order(term=4, serial=1, incarnation="b0", goal=Goal.WAIT, round=3, tenure=1)
    feed(control, 0.6, Received(1, order, "10.0.0.2"))
    assert control.head is None
    assert control.member.follower.head == 1


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_one_that_is_started_anew_begins_nothing_by_itself(nodes):
    """The others may continue without it, or have ended."""
    crew = Crew(" ".join(f"n{n}" for n in range(nodes)), fewest=1, last_call=1.0, join=30.0)
    crew.start(0, anew=True)
    crew.until(50.0)
    assert not crew.parts
    missing = ", ".join(f"n{n}" for n in range(1, nodes))
    why = f"the agent on n0 was started again, and {missing} did not answer within 30 s: "
    why += "the job may continue without it, or be over"
    assert crew.verdicts[0].reason == why


def test_one_that_is_started_anew_takes_part_again():
    crew = at_work("n0 n1 n2", grow=Grow.NOW)
    crew.kill(0)
    crew.until(5.0)
    crew.start(0, anew=True)
    crew.until(10.0)
    assert crew.heads == [1]
    assert crew.running.keys() == {0, 1, 2}
    assert not crew.clashes


def test_once_a_round_has_begun_it_steps_down_for_nobody_who_is_not_elected():
    crew = at_work("n0 n1 n2")
    order = Order(term=1, serial=1, incarnation="a0", goal=Goal.WAIT, round=2)
    crew.agents[0].handle(Received(1, order, "10.0.0.2"), 2.1)
    assert crew.heads == [0]


# An agent that is started anew though nobody can say that the one before is dead


@pytest.mark.parametrize("hosts", ["n0 n1", "n0 n1 n2 n3"])
def test_one_that_is_started_anew_votes_though_no_host_says_that_it_was_dead(hosts):
    """Half of the voters are gone, so no configuration without them comes into force otherwise."""
    crew = at_work(hosts, grow=Grow.NOW)
    half = range(len(crew.agents) // 2, len(crew.agents))
    crew.kill(*half, down=True)
    crew.until(6.0)
    assert crew.agents[0].head.state.lease.configuration.old is not None
    crew.start(*half, anew=True)
    crew.until(20.0)
    assert crew.agents[0].head.state.lease.configuration.old is None
    crew.kill(0)
    crew.until(30.0)
    assert (crew.heads, set(crew.running)) == ([1], set(crew.agents))
    assert not crew.clashes


@pytest.mark.parametrize("after", [1.0, 10.0], ids=["at once", "later"])
def test_of_two_nodes_both_end_if_the_head_is_started_anew_and_no_host_says_that_it_was_dead(after):
    """The other one cannot know whether the first start of the head still leads."""
    crew = at_work("n0 n1", wait=60.0, join=600.0)
    crew.kill(0, down=True)
    crew.until(DIED + after)
    crew.start(0, anew=True)
    crew.until(70.0)
    assert crew.verdicts.keys() == {1}
    assert crew.verdicts[1].reason.startswith("the head on n0 was lost: it has been silent for")
    assert "too few agents are left to elect another" in crew.verdicts[1].reason
    assert not crew.running
    crew.until(DIED + after + 610.0)
    assert crew.verdicts[0].reason.startswith("the agent on n0 was started again, and n1 did not")
    assert 0 not in {each.code for each in crew.verdicts.values()}
    assert not crew.clashes


# Where all know the first agent only

ENDS = "Without Slurm, a job ends with its first machine"


def first_come(*hosts, **settings):
    crew = Crew("n0 n1 n2", **({"fewest": 2, "elects": False} | settings))
    crew.start(0)
    crew.come(*hosts)
    crew.until(1.0)
    return crew


@pytest.mark.parametrize("hosts", ["x y", "x"], ids=["while they train", "nothing has begun"])
def test_the_job_ends_with_its_first_machine(hosts):
    crew = first_come(*hosts.split())
    crew.kill(0)
    crew.until(5.0)
    why = f"the head on n0 was lost: its host confirmed that it exited. {ENDS}"
    assert [verdict.reason for verdict in crew.verdicts.values()] == [why] * len(hosts.split())
    assert not crew.running


def test_the_others_end_once_the_first_machine_is_silent_for_too_long():
    crew = first_come("x", "y", loss=3.0)
    crew.cut([0], [1, 2])
    crew.until(2.0)
    crew.mend()
    crew.until(6.0)
    assert crew.running.keys() == {0, 1, 2}
    crew.cut([0], [1, 2])
    crew.until(16.0)
    assert {verdict.reason.rpartition(". ")[2] for verdict in crew.verdicts.values()} == {ENDS}
    assert crew.verdicts.keys() == {1, 2}


@pytest.mark.parametrize(("fewest", "expected"), [(1, {0}), (2, set())])
def test_the_first_machine_continues_if_enough_are_left(fewest, expected):
    """Half of them need not be there: nobody else can lead."""
    crew = first_come("x", "y", fewest=fewest)
    crew.kill(1, 2)
    crew.until(20.0)
    assert crew.running.keys() == expected


def test_one_too_many_gets_no_place():
    crew = first_come("x", "y", "z")
    assert crew.running.keys() == {0, 1, 2}
    crew.kill(2)
    crew.come("y again")  # where the last one was, others may look for it
    crew.until(700.0)
    assert crew.verdicts.keys() == {5, 6}
    assert "the head on n0 did not answer z within" in crew.verdicts[5].reason


def idle(index, **fields):
    return report(index, Phase.IDLE, **fields)


@pytest.mark.parametrize("met_at", [2.0, 5.0], ids=["before its first round", "in a round"])
def test_the_first_machine_is_started_again_and_meets_one_that_it_led_before(met_at):
    """The agent missed the end of the others. It does not train beside their new world."""
    crew = at_work("n0 n1 n2", elects=False, fewest=2, last_call=1.0, loss=3.0)
    crew.until(1.0)
    crew.cut([1], [0, 2])
    crew.kill(0, 2)
    crew.start(0, 2, anew=True)
    crew.until(met_at)
    assert crew.running.keys() >= ({0, 2} if met_at > 4.0 else set())
    crew.mend()
    crew.until(10.0)
    why = "the head on n0 was started again, and begins the job anew"
    assert crew.verdicts[1].reason == why
    assert crew.running.keys() == {0, 2}
    assert not crew.clashes


def test_it_begins_with_few_only_after_those_that_it_led_before_have_stopped():
    """The agents may not hear that the first machine was started again."""
    crew = at_work("n0 n1 n2", elects=False, fewest=1, last_call=1.0, loss=10.0)
    crew.until(1.0)
    crew.cut([0], [1, 2])
    crew.kill(0)
    crew.start(0, anew=True)
    crew.until(10.0)
    assert 0 not in crew.running
    crew.until(13.0)
    assert crew.running.keys() == {0}


def test_no_place_is_given_while_agents_of_an_earlier_start_end():
    control = Control(
        AgentStart(a_job("n0 n1 n2", fewest=2, elects=False), 0, 1, "10.0.0.1", "b0", port=7000)
    )
    feed(control, 0.0, Started(), StoreListening(4000), HealthFound())
    effects = feed(control, 0.1, report(1, Phase.RUNNING, 3, incarnation="a1"))
    sent = [e.message for e in effects if isinstance(e, Send) and e.to == 1]
    assert [(stop.start, stop.incarnation) for stop in sent] == [("b0", "a1")]
    came = idle(3, incarnation="x")
    assert not any(isinstance(e, Send) for e in feed(control, 0.2, came))
    feed(control, 3.0, Tick())
    assert Send(3, PlaceGiven("x", 1)) in feed(control, 3.1, came)
