"""Stories of unfit nodes: the reports, and the jobs that continue without them."""

from __future__ import annotations

import shlex

import pytest
from crew import Crew
from story import (
    a_job,
    a_member,
    a_part,
    an_order,
    deeds,
    failed,
    feed,
    orders,
    report,
    reports,
    run,
    said,
    wait,
)

from hpclaunch.core.head.head import Head
from hpclaunch.core.head.round import isolation
from hpclaunch.core.protocol.effects import (
    CheckHealth,
    ChooseCheckpoint,
    OpenStore,
    PrepareGpus,
    Send,
    StartWorkers,
    StopWorkers,
)
from hpclaunch.core.protocol.events import (
    AgentGone,
    CheckpointChosen,
    GpusReady,
    HeadReached,
    HealthFound,
    PeerClosed,
    Started,
    StoreListening,
    Tick,
    WorkersGone,
)
from hpclaunch.core.protocol.facts import RoundBegan
from hpclaunch.core.protocol.model import EXIT_LOST, Goal, Origin, Phase, Share, Shares
from hpclaunch.core.protocol.stages import Stage
from hpclaunch.core.protocol.values import replace
from hpclaunch.observe.console import Console

IDLE, RUNNING, DONE = Phase.IDLE, Phase.RUNNING, Phase.DONE
STOPPING = Phase.STOPPING
BEGAN = RoundBegan(0, "n[0-1]", 2, 4, (), (), False, (), "", "", (), "", 1, saves=False)
ILL = "GPU 1 ECC: 3 uncorrected memory errors"


def a_head(hosts, **settings):
    head = Head(a_job(hosts, **{"loss": 100.0, "beat": 100.0} | settings))
    feed(head, 0.0, Started())
    return head


# The head


def test_a_node_that_is_unfit_from_the_start_gets_no_workers():
    head = a_head("n0 n1 n2", fewest=2, health=True, slurm_id="71")
    feed(head, 0.1, report(0, IDLE), report(2, IDLE))
    effects = feed(head, 0.2, report(1, IDLE, unfit=ILL))
    (text,) = said(effects)
    first, second = text.splitlines()
    assert first == f"n1 is cordoned: {ILL}"
    words = shlex.split(second.partition(": ")[2])
    assert words == ["scontrol", "update", "NodeName=n1", f"Comment=job 71: {ILL}"]
    effects = feed(head, 0.3, CheckpointChosen(""))
    assert orders(effects) == [(0, "run", 0), (1, "run", 0), (2, "run", 0)]
    parts = {e.to: e.message.assignment for e in effects if isinstance(e, Send)}
    assert parts[1] is None
    assert {parts[i].group_world_size for i in (0, 2)} == {2}


def test_several_agents_of_a_node_are_cordoned_once():
    head = a_head("n0 n1 n1", fewest=1, health=True)
    effects = feed(head, 0.1, report(0, IDLE), report(1, IDLE, unfit=ILL, host="n1"))
    effects += feed(head, 0.2, report(2, IDLE, unfit=ILL, host="n1"))
    assert said(effects) == [f"n1 is cordoned: {ILL}"]
    assert ChooseCheckpoint() in deeds(effects)


def test_a_node_that_is_ill_again_after_its_agent_was_started_again_is_cordoned_again():
    head = a_head("n0 n1 n2", fewest=2, health=True)
    feed(head, 0.1, report(0, IDLE), report(2, IDLE))
    assert said(feed(head, 0.2, report(1, IDLE, unfit=ILL))) == [f"n1 is cordoned: {ILL}"]
    feed(head, 0.3, PeerClosed(1), AgentGone(1))
    assert said(feed(head, 0.4, report(1, IDLE, incarnation="b1"))) == ["n1 is back"]
    effects = feed(head, 0.5, report(1, IDLE, unfit=ILL, incarnation="b1"))
    assert said(effects) == [f"n1 is cordoned: {ILL}"]


def test_too_few_nodes_are_left():
    head = a_head("n0 n1", health=True)
    feed(head, 0.1, report(0, IDLE), report(1, IDLE, unfit=ILL))
    assert head.state.end.verdict.code == EXIT_LOST
    assert head.state.end.verdict.reason == (
        f"n1: {ILL}; 1 of 2 nodes are left, and the job needs 2 (--nnodes 1:2 continues without "
        "lost nodes)"
    )


FULL, GONE = "log directory: full", "its host confirmed that it exited"


def ended_without(*losses, hosts="n0 n1 n2 n3", fewest=3):
    """Return how a job ends that loses agents, or whose agents become unfit, one after another."""
    head, names = a_head(hosts, fewest=fewest, health=True), hosts.split()
    unfit, there = dict.fromkeys(range(len(names)), ""), set(range(len(names)))

    def reported(agent, phase, number=-1):
        return report(agent, phase, number, host=names[agent], unfit=unfit[agent])

    feed(head, 0.1, *(reported(i, IDLE) for i in there))
    feed(head, 0.2, CheckpointChosen(""))
    feed(head, 0.3, *(reported(i, RUNNING, 0) for i in there))
    for now, (agent, why) in enumerate(losses, 1):
        if why:
            unfit[agent] = why
            feed(head, now, reported(agent, STOPPING, 0))
        else:
            there.remove(agent)
            feed(head, now, PeerClosed(agent), AgentGone(agent))
    feed(head, 9.0, *(reported(i, IDLE, 0) for i in there))
    feed(head, 9.1, Tick())
    ended = head.state.end.verdict
    reason, _, left = ended.reason.rpartition("; ")
    assert "nodes are left, and the job needs" in left
    return ended.origin, reason


@pytest.mark.parametrize(
    ("losses", "origin", "reason"),
    [
        ([(1, ILL), (2, FULL)], Origin.NODE_UNFIT, f"n2: {FULL}; n1: {ILL}"),
        ([(2, FULL), (1, ILL)], Origin.NODE_UNFIT, f"n1: {ILL}; n2: {FULL}"),
        ([(2, ILL), (1, ILL)], Origin.NODE_UNFIT, f"n1, n2: {ILL}"),
        ([(1, ILL), (2, "")], Origin.NODE_LOST, f"the agent on n2 was lost: {GONE}; n1: {ILL}"),
        ([(1, ""), (2, ILL)], Origin.NODE_UNFIT, f"n2: {ILL}; the agent on n1 was lost: {GONE}"),
    ],
)
def test_the_end_names_each_node_with_its_own_reason_the_last_one_first(losses, origin, reason):
    assert ended_without(*losses) == (origin, reason)


def test_the_end_names_a_node_of_several_agents_once():
    _, reason = ended_without((2, ILL), (1, ILL), hosts="n0 n1 n1", fewest=2)
    assert reason == f"n1: {ILL}"


def test_the_end_names_a_few_nodes_and_counts_the_others():
    losses = [(i, "") for i in range(1, 6)]
    _, reason = ended_without(*losses, hosts="n0 n1 n2 n3 n4 n5", fewest=2)
    named = [f"the agent on n{i} was lost: {GONE}" for i in (5, 1, 2)]
    assert reason == "; ".join([*named, "and 2 more nodes"])


def test_alone_it_ends():
    head = a_head("n0", health=True)
    effects = feed(head, 0.1, report(0, IDLE, unfit=ILL))
    assert said(effects) == []
    assert head.state.end.verdict.reason == f"n0: {ILL}"


STUCK = "workers survive SIGKILL for 30 s (a hung file system or driver?)"


def a_stuck_head(hosts, **settings):
    """A worker on n1 has failed, and one on n2 cannot be killed. Returns what is said, too."""
    head = a_head(hosts, max_restarts=3, **settings)
    nodes = range(len(hosts.split()))
    feed(head, 0.1, *(report(i, IDLE) for i in nodes))
    feed(head, 0.2, CheckpointChosen(""), *(report(i, RUNNING, 0) for i in range(3)))
    feed(head, 1.0, report(1, STOPPING, 0, exits=(failed(2),)))
    feed(head, 50.0, report(0, IDLE, 0), report(1, IDLE, 0, exits=(failed(2),)))
    effects = feed(head, 50.1, report(2, Phase.STUCK, 0, unfit=STUCK))
    return head, said(effects + feed(head, 50.2, CheckpointChosen("")))


def test_a_worker_that_cannot_be_killed_costs_its_node_where_there_is_a_spare():
    head, lines = a_stuck_head("n0 n1 n2 n3", most=3)
    assert f"n2 is cordoned: {STUCK}" in lines
    assert "continuing with n3 and without n2: 3 nodes" in lines
    feed(head, 60.0, *(report(i, RUNNING, 1) for i in (0, 1, 3)))
    effects = feed(head, 70.0, *(report(i, DONE, 1) for i in (0, 1, 3)))
    assert said(effects) == [f"the job has ended without n2, which was cordoned: {STUCK}"]
    assert head.state.end.verdict.code == 0


def test_a_worker_that_cannot_be_killed_ends_a_job_that_needs_its_node():
    head, _ = a_stuck_head("n0 n1 n2")
    assert head.state.end.verdict.code == EXIT_LOST
    assert head.state.end.verdict.reason.startswith(f"n2: {STUCK}; 2 of 3 nodes are left")


def test_a_node_that_falls_ill_costs_no_restart():
    head = a_head("n0 n1 n2", fewest=2, health=True, max_restarts=0)
    feed(head, 0.1, *(report(i, IDLE) for i in range(3)))
    feed(head, 0.2, CheckpointChosen(""), *(report(i, RUNNING, 0) for i in range(3)))
    effects = feed(head, 1.0, report(2, Phase.STOPPING, 0, unfit=ILL))
    assert orders(effects) == [(0, "stop", 0), (1, "stop", 0), (2, "stop", 0)]
    effects = feed(head, 1.1, *(report(i, IDLE, 0, unfit=ILL if i == 2 else "") for i in range(3)))
    assert ChooseCheckpoint() in deeds(effects)
    assert (head.state.round, head.state.budget.total, head.state.end.verdict) == (1, 0, None)


def test_workers_that_were_killed_with_their_node_have_not_ended_well():
    """Even if all others have ended with 0, and have left processes behind."""
    head = a_head("n0 n1 n2", fewest=2, health=True)
    feed(head, 0.1, *(report(i, IDLE) for i in range(3)))
    feed(head, 0.2, CheckpointChosen(""), *(report(i, RUNNING, 0) for i in range(3)))
    well = [replace(failed(rank), code=0) for rank in range(4)]
    killed = [replace(failed(rank, 137, 9), stopped=True) for rank in (4, 5)]
    feed(head, 1.0, report(0, RUNNING, 0, exits=tuple(well[:2])))
    feed(head, 1.1, report(1, RUNNING, 0, exits=tuple(well[2:])))
    feed(head, 1.2, report(2, STOPPING, 0, unfit=ILL, exits=tuple(killed)))
    assert (head.stage, head.state.end.verdict) == (Stage.STOPPING, None)


# A member


def test_a_member_is_ready_once_it_has_been_looked_at():
    member = a_member(health=True)
    assert deeds(feed(member, 0.0, Started())) == [OpenStore(), CheckHealth()]
    feed(member, 0.1, StoreListening(4001), HeadReached(0), wait())
    assert member.phase is Phase.PREPARING
    (reported,) = reports(feed(member, 0.2, HealthFound("")))
    assert (reported.phase, reported.unfit) == (Phase.IDLE, "")


def test_a_member_that_falls_ill_stops_its_workers_and_stays_ill():
    member = a_member(health=True)
    feed(member, 0.0, Started(), StoreListening(4001), HeadReached(0), wait(), HealthFound(""))
    feed(member, 0.5, run(0))
    effects = feed(member, 1.0, HealthFound(ILL))
    assert deeds(effects) == [StopWorkers()]
    assert reports(effects)[-1].unfit == ILL
    effects = feed(member, 2.0, WorkersGone(), StoreListening(4002), HealthFound(""))
    assert reports(effects)[-1].unfit == ILL


def test_workers_wait_for_their_gpus():
    member = a_member()
    feed(member, 0.0, Started(), StoreListening(4001), HeadReached(0), wait())
    part = a_part(shares=Shares((Share((0,), 2), Share((0,), 2, leads=False)), isolated=True))
    assert deeds(feed(member, 1.0, an_order(Goal.RUN, assignment=part))) == [PrepareGpus(part)]
    assert deeds(feed(member, 1.1, GpusReady(7))) == []  # of another round
    assert deeds(feed(member, 1.2, GpusReady(0))) == [StartWorkers(part)]
    assert deeds(feed(member, 1.3, GpusReady(0))) == []


# What is said of GPUs


def worded(isolated):
    """The message of a round on nodes that are alike."""
    (line,) = Console().lines(replace(BEGAN, isolated=isolated))
    return line


def test_nodes_with_different_numbers_of_workers():
    lines = Console().lines(replace(BEGAN, layout="1,2"))
    assert lines == ["the nodes have different numbers of workers: 1,2"]


def test_hosts_that_share_gpus_alike_are_one_line():
    shared = Shares((Share((0,), 2), Share((0,), 2, leads=False)), isolated=True)
    own = Shares((Share((0,)), Share((1,))), isolated=True)
    alike = [("n0", a_part(shares=shared)), ("n1", a_part(shares=shared))]
    line = worded(isolation(alike, asked=False))
    assert line.startswith("2 workers share 1 GPU on n0, n1; each worker sees only its own")
    line = worded(isolation([("n0", a_part(shares=own))], asked=False))
    assert line.startswith("GPUs on n0: each worker sees only its own")
    assert isolation([("n0", a_part(shares=own))], asked=True) == ()


def test_the_return_of_a_cordoned_node_is_recorded_as_its_loss_is():
    crew = Crew("n0 n1 n2", most=2, fewest=2)
    crew.start(0, 1, 2)
    crew.until(2.0)
    crew.feed(1, HealthFound("GPU 0 is gone"))
    crew.until(15.0)
    for again in (True, False):
        crew.kill(1)
        crew.until(crew.now + 10.0)
        if again:
            crew.start(1, anew=True)
            crew.until(crew.now + 10.0)
    about = [line.partition(":")[0] for line in crew.said if "n1 " in line]
    lost = "the agent on n1 was lost"
    assert about == ["n1 is cordoned", lost, "n1 is back", lost]
