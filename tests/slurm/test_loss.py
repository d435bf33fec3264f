"""An agent or a node is lost during a round."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import pytest

from .cluster import Cluster, eventually
from .conftest import AGENT, FORK_SERVER, PATIENT, SCRIPTS, WORKER, Launch
from .faults import unkillable

SIMPLE = SCRIPTS / "simple.py"
ANY = f"{WORKER}|^sleep 1000"  # the workers and their children
HEARD = "is heard again"


def test_a_killed_agent_ends_a_job_that_needs_its_node(cluster: Cluster, launch: Launch) -> None:
    job = launch("--nproc", 1, SIMPLE, "--until", "never", "--child")
    job.wait_for_workers(3)
    agent = cluster.process(AGENT, host="n2")
    agent.kill()
    eventually("no worker", lambda: not cluster.processes(ANY))
    ended = job.wait()
    assert ended.code != 0, str(ended)
    assert {job.codes[task] for task in (0, 2)} == {1}
    closed = "its host confirmed that it exited"
    assert f"the agent on n2 was lost: {closed}; 2 of 3 nodes are left" in ended.output
    assert "Traceback" not in ended.output


@pytest.mark.parametrize("nnodes", ["2:3", "2"], ids=["fewer", "a spare"])
def test_a_killed_agent_is_survived(cluster: Cluster, launch: Launch, nnodes: str) -> None:
    options = ("--nproc", 2, "--nnodes", nnodes, *PATIENT)
    job = launch(*options, SIMPLE, "--until", "go", "--child")
    job.wait_for_workers(6 if ":" in nnodes else 4)
    victim = job.environments()[2]["hostname"]  # with two nodes, the one that arrived first
    (other,) = {"n2", "n3"} - {victim}
    job.forget()
    agent = cluster.process(AGENT, host=victim)
    agent.kill()
    job.wait_for_workers(4)
    assert [env["hostname"] for env in job.environments().values()] == ["n1", "n1", other, other]
    assert {env["WORLD_SIZE"] for env in job.environments().values()} == {"4"}
    (job.directory / "go").touch()
    ended = job.wait()
    tasks = {0, int(other[1:]) - 1}
    assert {job.codes[task] for task in tasks} == {0}, str(ended)
    assert f"the agent on {victim} was lost: its host confirmed that it exited" in ended.output
    came = "" if ":" in nnodes else f"with {other} and "
    assert f"continuing {came}without {victim}: 2 nodes" in ended.output
    assert "restart" not in ended.output


def test_lists_of_nodes_are_those_of_the_round(cluster: Cluster, launch: Launch) -> None:
    """The first node in Slurm's variables is that of rank 0, which scripts use as MASTER_ADDR."""
    job = launch("--nproc", 1, "--nnodes", "2:3", *PATIENT, SIMPLE, "--until", "go")
    job.wait_for_workers(3)
    job.forget()
    agent = cluster.process(AGENT, host="n1")
    agent.kill()
    job.wait_for_workers(2)
    envs = job.environments()
    hosts = [envs[rank]["hostname"] for rank in (0, 1)]
    assert sorted(hosts) == ["n2", "n3"]
    for env in envs.values():
        for name in ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST"):
            shown = cluster.on("n2", ["scontrol", "show", "hostnames", env[name]])
            assert shown.split() == hosts
        for name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"):
            assert env[name] == "2"
    (job.directory / "go").touch()
    job.wait()


def test_a_killed_fork_server_costs_a_restart(cluster: Cluster, launch: Launch) -> None:
    options, timing = ("--nproc", 2, "--max-restarts", 1), {"leftovers": 1.0}
    job = launch(*options, SIMPLE, "--until", "never", "--child", nodes=2, timing=timing)
    for _ in range(2):
        job.wait_for_workers(4)
        pids = {p.pid for p in cluster.processes(ANY)}
        for file in job.directory.glob("environ-*"):
            file.unlink()
        server = cluster.process(FORK_SERVER, host="n2")
        server.kill()
        gone = lambda: not pids & {p.pid for p in cluster.processes(ANY)}  # noqa: B023, E731
        eventually("no worker of the round", gone)
    ended = job.wait()
    assert ended.code == 137, str(ended)
    assert job.codes == {0: 137, 1: 137}
    assert "the fork server on n2 was killed" in ended.output
    assert "restart 1 of 1" in ended.output


def test_a_node_without_network_is_survived_and_comes_back(
    cluster: Cluster, launch: Launch
) -> None:
    """No connection is closed, so the loss can only be detected by silence."""
    job = launch("--nproc", 1, "--nnodes", "2:3", SIMPLE, "--until", "go")
    job.wait_for_workers(3)
    job.forget()
    node = cluster.nodes["n3"]
    worker = cluster.process(WORKER, host="n3")
    with node.without_network():
        job.wait_for_workers(2)
        assert worker.is_stopped  # stopped by its own fork server
        job.says("the agent on n3 was lost: it has been silent for ")
    job.says("n3 is back")
    assert not cluster.processes(WORKER, host="n3")
    job.forget()
    for worker in cluster.processes(WORKER, host="n2"):
        worker.kill()
    job.wait_for_workers(3)  # n3 takes part in the next round
    (job.directory / "go").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert job.codes == {0: 0, 1: 0, 2: 0}
    text = r"the agent on n3 was lost: it has been silent for (\d+) s"
    assert min(map(int, re.findall(text, ended.output))) >= 3


def test_a_worker_that_cannot_be_killed_costs_its_node(cluster: Cluster, launch: Launch) -> None:
    job = launch(
        *("--nproc", 1, "--grace", 1, "--nnodes", 2, *PATIENT, SIMPLE, "--until", "go"),
        timing={"unkillable": 4.0},
    )
    job.wait_for_workers(2)
    victim = job.environments()[1]["hostname"]
    (other,) = {"n2", "n3"} - {victim}
    job.forget()
    worker = cluster.process(WORKER, host=victim)
    first = cluster.process(WORKER, host="n1")
    with unkillable(worker.pid):
        first.kill()
        job.wait_for_workers(2)
        assert [env["hostname"] for env in job.environments().values()] == ["n1", other]
        (job.directory / "go").touch()
        job.says("the job has ended without")
    ended = job.wait()
    why = "workers survive SIGKILL for 4 s (a hung file system or driver?)"
    assert f"{victim} is cordoned: {why}" in ended.output
    assert f"the job has ended without {victim}, which was cordoned: {why}" in ended.output
    assert ended.code == 0, str(ended)


def test_a_full_disk_costs_no_node(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """On one node, no file can be created in the log directory after the first round."""
    logs = tmp_path / "logs"
    logs.mkdir()
    cluster.on("n2", ["mount", "-t", "tmpfs", "-o", "size=9g,nr_inodes=200", "small", str(logs)])
    try:
        options = ("--nproc", 1, "--nnodes", "1:2", *PATIENT, "--log-dir", logs)
        job = launch(*options, SIMPLE, "--until", "go", nodes=2, env={"TMPDIR": str(tmp_path)})
        job.wait_for_workers(2)
        job.forget()
        fill = f"for i in $(seq 300); do : >{shlex.quote(str(logs))}/$i; done"
        cluster.on("n2", ["sh", "-c", f"({fill}) 2>/dev/null; true"])
        worker = cluster.process(WORKER, host="n1")
        worker.kill()
        job.wait_for_workers(2)
        (job.directory / "go").touch()
        ended = job.wait()
    finally:
        cluster.on("n2", ["umount", "--lazy", str(logs)])
    assert ended.code == 0, str(ended)
    (substitute,) = tmp_path.glob("hpclaunch-logs-*/round-1")
    what = f"the output of round 1 is in {substitute} on n2: No space left on device"
    assert what in ended.output
    names = sorted(p.name for p in substitute.iterdir())
    assert names == ["index-agent-1.txt", "rank-1.err", "rank-1.out"]


@pytest.mark.usefixtures("light_torch")
def test_a_script_prints_on_a_full_disk(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """The script does not notice. The file counts the lost bytes when there is room again."""
    logs = tmp_path / "logs"
    logs.mkdir()
    cluster.on("n2", ["mount", "-t", "tmpfs", "-o", "size=4m", "small", str(logs)])
    try:
        script = (SCRIPTS / "chatty.py", "--until", "enough", "--pad", 5000)
        options = ("--nproc", 1, "--nnodes", "1:2", *PATIENT, "--log-dir", logs)
        job = launch(*options, *script, nodes=2)
        job.says("step 5")
        fill = f"cat /dev/zero >{shlex.quote(str(logs))}/full; true"
        cluster.on("n2", ["sh", "-c", fill + " 2>/dev/null"])
        job.says(f"the disk is full, and what workers write is lost: {logs / 'round-0'}\n")
        steps = re.findall(r"rank 0 step (\d+)", job.output)
        job.says(f"rank 0 step {int(steps[-1]) + 3} ")  # rank 1 has written more than a page
        cluster.on("n2", ["rm", str(logs / "full")])
        steps = re.findall(r"rank 0 step (\d+)", job.output)
        job.says(f"rank 1 step {int(steps[-1]) + 20} ")
        (tmp_path / "enough").touch()
        ended = job.wait()
        (out,) = cluster.on("n2", ["find", str(logs), "-name", "rank-*.out"]).splitlines()
        written = cluster.on("n2", ["cat", out])
    finally:
        cluster.on("n2", ["umount", "--lazy", str(logs)])
    assert ended.code == 0, str(ended)
    assert "restart" not in ended.output
    assert re.search(r"hpclaunch: \d+ bytes are lost here: No space left on device\n", written)
    assert f"step {int((tmp_path / 'steps').read_text()) - 1} " in written


def test_a_missing_no_kill_is_pointed_out(launch: Launch) -> None:
    """With an option of srun or its variable, which two steps have, nothing is missing."""
    arguments = ("--nproc", 1, "--nnodes", "1:2", *PATIENT, SIMPLE)
    missing = launch(*arguments, srun="srun hpclaunch", nodes=2).wait()
    assert missing.code == 0, str(missing)
    assert "--no-kill" in missing.output
    after = f"SLURM_NO_KILL= srun hpclaunch {shlex.join(map(str, arguments))}"
    given = launch(*arguments, srun="set -e; srun --no-kill hpclaunch", after=after, nodes=2).wait()
    assert given.code == 0, str(given)
    assert given.output.count("rank 1 is on n2") == 2, str(given)
    assert "--no-kill" not in given.output


def test_a_node_that_returns_can_end_the_round(cluster: Cluster, launch: Launch) -> None:
    job = launch("--nproc", 1, "--nnodes", "2:3", "--grow", "now", SIMPLE, "--until", "go")
    job.wait_for_workers(3)
    job.forget()
    node = cluster.nodes["n3"]
    with node.without_network():
        job.wait_for_workers(2)
        job.forget()
    job.wait_for_workers(3)
    job.says("ending the round, to continue with n3")
    (job.directory / "go").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)


def test_a_node_without_network_ends_a_job_that_needs_it(cluster: Cluster, launch: Launch) -> None:
    options = ("--wait-for-nodes", 4, "--loss-timeout", 3)
    job = launch("--nproc", 1, *options, SIMPLE, "--until", "never", timing={"goodbye": 4.0})
    job.wait_for_workers(3)
    node = cluster.nodes["n3"]
    with node.without_network():
        eventually("no worker", lambda: not cluster.processes(ANY))
        job.says("waiting for n3: 2 of 3 nodes are here; 4 s more")
        job.says("2 of 3 nodes are left, and the job needs 3")
        eventually("no agent on n3", lambda: not cluster.processes(AGENT, host="n3"))
    ended = job.wait()
    assert ended.code == 1, str(ended)
    assert job.codes == {0: 1, 1: 1, 2: 1}
    assert "n3: the head on n1 was lost: it has been silent for" in ended.output


def test_an_agent_that_is_stopped_costs_one_round_only(cluster: Cluster, launch: Launch) -> None:
    job = launch("--nproc", 1, "--nnodes", "2:3", SIMPLE, "--until", "go")
    job.wait_for_workers(3)
    job.forget()
    agent = cluster.process(AGENT, host="n2")
    worker = cluster.process(WORKER, host="n2")
    agent.kill(signal.SIGSTOP)
    try:
        job.wait_for_workers(2)
        assert worker.is_stopped
    finally:
        agent.kill(signal.SIGCONT)
    job.says("n2 is back")
    (job.directory / "go").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)


def test_a_job_of_fixed_size_waits_for_a_stopped_agent(cluster: Cluster, launch: Launch) -> None:
    """No round can begin without this agent, so its silence does not end one."""
    timing = {"silence_notice": 4.0}
    job = launch("--nproc", 1, SIMPLE, "--until", "go", nodes=2, timing=timing)
    job.wait_for_workers(2)
    workers = {p.pid for p in cluster.processes(WORKER)}
    for host, silence in (("n2", "n2: silent for"), ("n1", "the head on n1: it has been sil")):
        silent, heard = job.output.count(silence), job.output.count(HEARD)
        agent = cluster.process(AGENT, host=host)
        agent.kill(signal.SIGSTOP)
        try:
            eventually(silence, lambda: job.output.count(silence) > silent)  # noqa: B023
        finally:
            agent.kill(signal.SIGCONT)
        eventually(HEARD, lambda: job.output.count(HEARD) > heard)  # noqa: B023
    assert {p.pid for p in cluster.processes(WORKER)} == workers
    (job.directory / "go").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert "was lost" not in ended.output


def test_a_cancelled_job_does_not_wait_for_a_silent_head(cluster: Cluster, launch: Launch) -> None:
    job = launch("--nproc", 1, SIMPLE, "--until", "never", timing={"goodbye": 3.0})
    job.wait_for_workers(3)
    agent = cluster.process(AGENT, host="n1")
    agent.kill(signal.SIGSTOP)
    try:
        others = [*cluster.processes(AGENT, host="n2"), *cluster.processes(AGENT, host="n3")]
        for other in others:
            other.kill(signal.SIGINT)
        eventually("their end", lambda: len(cluster.processes(AGENT)) == 1)
    finally:
        agent.kill(signal.SIGCONT)
    ended = job.wait()
    assert (job.codes[1], job.codes[2]) == (130, 130), str(ended)
