"""The head is lost during a round: another agent takes over, unless it has no quorum."""

from __future__ import annotations

import os
import re
import signal

import pytest

from .cluster import Cluster, Job, eventually
from .conftest import AGENT, FORK_SERVER, NEW_HEAD, PATIENT, SCRIPTS, WORKER, Launch

SIMPLE = SCRIPTS / "simple.py"
ANY = f"{WORKER}|^sleep 1000"


def pids(cluster: Cluster, host: str) -> set[int]:
    return {p.pid for p in cluster.processes(WORKER, host=host)}


def running(cluster: Cluster, host: str) -> set[int]:
    return {p.pid for p in cluster.processes(WORKER, host=host) if not p.is_stopped}


def hosts(job: Job) -> list[str]:
    return [env["hostname"] for env in job.environments().values()]


@pytest.mark.parametrize(
    ("nodes", "nnodes"),
    [(3, "2:3"), (3, "2"), (2, "1:2")],
    ids=["fewer", "a spare", "the last one"],
)
def test_a_killed_head_is_survived(
    cluster: Cluster, launch: Launch, nodes: int, nnodes: str
) -> None:
    options = ("--nproc", 2, "--nnodes", nnodes, *PATIENT)
    job = launch(*options, SIMPLE, "--until", "go", "--child", nodes=nodes)
    job.wait_for_workers(2 * int(nnodes[-1]))
    second = hosts(job)[2]  # this node keeps its ranks; another one takes those of the head's node
    first = {"n2": "n3", "n3": "n2"}[second]
    expected = [first, first, second, second] if nodes == 3 else [second, second]
    job.forget()
    agent = cluster.process(AGENT, host="n1")
    agent.kill()
    job.wait_for_workers(len(expected))
    assert hosts(job) == expected
    assert {env["TORCHELASTIC_RESTART_COUNT"] for env in job.environments().values()} == {"0"}
    assert not cluster.processes(ANY, host="n1")
    (job.directory / "go").touch()
    ended = job.wait()
    assert {job.codes[task] for task in range(1, nodes)} == {0}, str(ended)
    assert NEW_HEAD.search(ended.output)
    assert "n1: 2 nodes" in ended.output or nodes == 2
    assert "Traceback" not in ended.output


def with_a_first_agent_killed(
    cluster: Cluster, launch: Launch, after: float | None, *options: str, **timing: float
) -> Job:
    """Start a job, kill its first agent, and wait for the takeover.

    The first agent is started again `after` so many seconds or, with None, once a number of seconds
    is written to the FIFO again.n1.
    """
    srun = f"srun {SCRIPTS}/again.sh {SCRIPTS}/agent.sh"
    options = ("--nnodes", "1:3", *PATIENT, *options)
    job = launch("--nproc", 1, *options, SIMPLE, "--until", "go", srun=srun, timing=timing)
    job.wait_for_workers(3)
    job.forget()
    again = job.directory / "again.n1"
    os.mkfifo(again) if after is None else again.write_text(f"{after}\n")
    agent = cluster.process(AGENT, host="n1")
    agent.kill()
    eventually("another head", lambda: NEW_HEAD.search(job.output))
    return job


@pytest.mark.parametrize("after", [0.5, 4.0], ids=["at once", "later"])
def test_a_first_agent_that_is_started_again_joins_the_others(
    after: float, cluster: Cluster, launch: Launch
) -> None:
    """The others have continued without it."""
    job = with_a_first_agent_killed(cluster, launch, after, "--grow", "now")
    job.says("continuing with n1: 3 nodes")
    job.wait_for_workers(3)
    (job.directory / "go").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)


def test_a_first_agent_that_is_started_again_after_the_end_starts_no_workers(
    cluster: Cluster, launch: Launch
) -> None:
    options = ("--rdzv-conf", "join_timeout=8")
    job = with_a_first_agent_killed(cluster, launch, None, *options, goodbye=4.0)
    job.wait_for_workers(2)
    (job.directory / "go").touch()
    eventually("the end of the others", lambda: {1, 2} <= job.codes.keys())
    (job.directory / "again.n1").write_text("0\n")
    ended = job.wait()
    assert (job.codes[0], job.codes[1], job.codes[2]) == (1, 0, 0), str(ended)
    text = r"the agent on n1 was started again, and n2, n3 did not answer within (\d+) s"
    assert min(map(int, re.findall(text, ended.output))) >= 8
    assert len(job.environments()) == 2, "no worker has trained a second time"


def test_two_nodes_end_if_the_head_is_started_again_and_no_host_says_that_it_was_dead(
    cluster: Cluster, launch: Launch
) -> None:
    """Both launchers end with an error of their own, and no worker trains a second time."""
    srun = f"srun {SCRIPTS}/again.sh {SCRIPTS}/agent.sh"
    options = ("--nnodes", "1:2", "--wait-for-nodes", 6, "--rdzv-conf", "join_timeout=10")
    job = launch("--nproc", 1, *options, SIMPLE, "--until", "never", nodes=2, srun=srun)
    job.wait_for_workers(2)
    job.forget()
    (job.directory / "again.n1").write_text("1\n")
    agent = cluster.process(AGENT, host="n1")
    fork_server = cluster.process(FORK_SERVER, host="n1")
    agent.kill(signal.SIGSTOP)  # otherwise the one that ends last might report the other's end
    fork_server.kill()
    agent.kill()
    ended = job.wait()
    assert (job.codes[0], job.codes[1]) == (1, 1), str(ended)
    lost = r"the head on n1 was lost: it has been silent for \d+ s, and too few agents are left"
    assert re.search(lost, ended.output), str(ended)
    again = "the agent on n1 was started again, and n2 did not answer within"
    assert again in ended.output, str(ended)
    assert not job.environments()
    assert not cluster.processes(ANY)


def test_a_killed_head_ends_a_job_that_needs_its_node(cluster: Cluster, launch: Launch) -> None:
    job = launch("--nproc", 1, SIMPLE, "--until", "never", "--child")
    job.wait_for_workers(3)
    agent = cluster.process(AGENT, host="n1")
    agent.kill()
    eventually("no worker", lambda: not cluster.processes(ANY))
    ended = job.wait()
    assert {job.codes[task] for task in (1, 2)} == {1}, str(ended)
    assert NEW_HEAD.search(ended.output)
    assert "the agent on n1 was lost: it has ended; 2 of 3 nodes are left" in ended.output


def test_a_head_without_network_is_replaced_and_comes_back(
    cluster: Cluster, launch: Launch
) -> None:
    """Each side hears nothing from the other: only the majority continues."""
    job = launch("--nproc", 1, "--nnodes", "2:3", SIMPLE, "--until", "go")
    job.wait_for_workers(3)
    job.forget()
    before = pids(cluster, "n1")
    with cluster.nodes["n1"].without_network():
        job.wait_for_workers(2)
        assert not running(cluster, "n1") & before  # stopped or ended by their own fork server
        assert set(hosts(job)) == {"n2", "n3"}
    job.says("n1 no longer leads: n2 does")
    job.says("n1 is back")
    job.forget()
    for worker in cluster.processes(WORKER, host="n2"):
        worker.kill()
    job.wait_for_workers(3)  # n1 takes part in the next round
    (job.directory / "go").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert job.codes == {0: 0, 1: 0, 2: 0}


def test_of_two_halves_the_one_with_the_head_continues(cluster: Cluster, launch: Launch) -> None:
    """The other half waits, says what it waits for, and takes part again when it is back."""
    job = launch("--nproc", 1, "--nnodes", "1:2", SIMPLE, "--until", "go", nodes=2)
    job.wait_for_workers(2)
    job.forget()
    with cluster.nodes["n2"].without_network():
        job.wait_for_workers(1)
        assert hosts(job) == ["n1"]
        eventually("no worker on n2", lambda: not running(cluster, "n2"))
    job.says("n2 is back")
    (job.directory / "go").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert job.codes == {0: 0, 1: 0}


def test_a_half_without_the_head_ends_in_time(cluster: Cluster, launch: Launch) -> None:
    options = ("--nproc", 1, "--nnodes", "1:2", "--wait-for-nodes", 5)
    timing = {"goodbye": 4.0, "headless_notice": 1.0}
    job = launch(*options, SIMPLE, "--until", "go", nodes=2, timing=timing)
    job.wait_for_workers(2)
    with cluster.nodes["n2"].without_network():
        eventually("no agent on n2", lambda: not cluster.processes(AGENT, host="n2"))
    (job.directory / "go").touch()
    job.says("n2 waits for a head: the one on n1 was lost (it has been silent for ")
    job.says("n2: the head on n1 was lost: it has been silent for")
    job.wait()
    assert job.codes == {0: 0, 1: 1}


def test_a_head_that_is_stopped_is_replaced(cluster: Cluster, launch: Launch) -> None:
    job = launch("--nproc", 1, "--nnodes", "2:3", SIMPLE, "--until", "go")
    job.wait_for_workers(3)
    job.forget()
    agent = cluster.process(AGENT, host="n1")
    agent.kill(signal.SIGSTOP)
    try:
        job.wait_for_workers(2)
        assert set(hosts(job)) == {"n2", "n3"}
        assert not running(cluster, "n1")
    finally:
        agent.kill(signal.SIGCONT)
    job.says("n1 is back")
    (job.directory / "go").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
