"""An agent or a node is lost in the midst of a round."""

from __future__ import annotations

import pytest

from .cluster import Cluster, eventually
from .conftest import AGENT, FORK_SERVER, SCRIPTS, WORKER, Launch

TELL = SCRIPTS / "tell.py"
ANY = f"{WORKER}|^sleep 1000"  # the workers and the children that they left behind
SECONDS = 20.0  # within which no worker may be left: far above the second that it takes


@pytest.mark.parametrize(
    ("victim", "words"),
    [
        ("n2", "the agent on n2 was lost: its connection was closed"),
        ("n1", "the head on n1 was lost: its connection was closed"),
    ],
    ids=["a member", "the head"],
)
def test_a_killed_agent_ends_the_job_everywhere(
    cluster: Cluster, launch: Launch, victim: str, words: str
) -> None:
    job = launch("--nproc", 2, TELL, "--until", "never", "--child")
    job.until_all_run(6)
    (agent,) = cluster.processes(AGENT, host=victim)
    agent.kill()
    eventually("no worker", lambda: not cluster.processes(ANY), SECONDS)
    ended = job.wait()
    assert ended.code != 0, str(ended)
    others = {task for task in range(3) if f"n{task + 1}" != victim}
    assert {job.codes[task] for task in others} == {1}
    assert f"{words} (exit code 1)\n" in ended.output
    assert "Traceback" not in ended.output


def test_a_killed_fork_server_costs_a_restart(cluster: Cluster, launch: Launch) -> None:
    job = launch("--nproc", 2, "--max-restarts", 1, TELL, "--until", "never", "--child")
    for _ in range(2):
        job.until_all_run(6)
        pids = {p.pid for p in cluster.processes(ANY)}
        for told in job.directory.glob("told-*"):
            told.unlink()
        (server,) = cluster.processes(FORK_SERVER, host="n2")
        server.kill()
        gone = lambda: not pids & {p.pid for p in cluster.processes(ANY)}  # noqa: B023, E731
        eventually("no worker of the round", gone, SECONDS)
    ended = job.wait()
    assert ended.code == 137, str(ended)
    assert job.codes == {0: 137, 1: 137, 2: 137}
    assert "the fork server on n2 was killed" in ended.output
    assert "restart 1 of 1" in ended.output


def test_a_node_without_network_ends_the_job_on_both_sides(
    cluster: Cluster, launch: Launch
) -> None:
    """Nobody closes a connection here: only the silence tells."""
    job = launch("--nproc", 1, TELL, "--until", "never")
    job.until_all_run(3)
    node = cluster.nodes["n3"]
    node.cut()
    try:
        eventually("no worker", lambda: not cluster.processes(ANY), 10 + SECONDS)
        job.says("the agent on n3 was lost: it has been silent for 10 s")
    finally:
        node.heal()
    ended = job.wait()
    assert ended.code == 1, str(ended)
    assert job.codes == {0: 1, 1: 1, 2: 1}
    assert "the head on n1 was lost: it has been silent for 10 s" in ended.output
