"""hpclaunch status, stop, restart and notice for a job on two nodes, by its user only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .asking import status, wait_until_running
from .cluster import Cluster, eventually
from .conftest import SCRIPTS

STEPPING = """\
import os, signal, sys, time
import torch

def on_notice(signum, frame):
    open(f"noticed-{os.environ['RANK']}", "w").close()

signal.signal(signal.SIGUSR1, on_notice)
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
while not os.path.exists("over"):
    optimizer.step()
    time.sleep(0.05)
"""
USER = "nobody"
pytestmark = pytest.mark.usefixtures("light_torch")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "stepping.py"
    path.write_text(STEPPING)
    return path


def refused(cluster: Cluster, *words: str, host: str = "ctl", user: str = "") -> str:
    """Return the output of a command that must end with 2."""
    command = ["sh", "-c", 'hpclaunch "$@" 2>&1; test $? = 2', "sh", *words]
    return cluster.on(host, command, user=user)


def test_from_the_login_node_and_within_the_job(
    cluster: Cluster, tmp_path: Path, script: Path
) -> None:
    body = f"""
    srun {SCRIPTS}/agent.sh --nproc 2 '{script}' &
    until [ -e look ]; do sleep 0.1; done
    hpclaunch status
    wait
    """
    job = cluster.sbatch(body, directory=tmp_path, nodes=2)
    launch = wait_until_running(cluster, job.id)
    name = launch["name"]  # not step 0 if `status` itself started an earlier step
    assert re.fullmatch(rf"{job.id}\.\d+", name)
    assert launch["slurm_id"] == str(job.id)
    assert [agent["host"] for agent in launch["job"]["agents"]] == ["n1", "n2"]
    assert launch["job"]["round"] == 0
    workers = [w for agent in launch["job"]["agents"] for w in agent["workers"]]
    assert [worker["rank"] for worker in workers] == [0, 1, 2, 3]
    assert {worker["phase"] for worker in workers} == {"step"}
    assert all(worker["memory"] > 10**7 for worker in workers)

    screen = cluster.on("ctl", ["hpclaunch", "status", str(job.id)])
    assert screen.startswith(f"{name}  running for ")
    assert "2 nodes · 4 ranks" in screen.replace(" - ", " · ")
    later = ("--begin=now+1hour",)
    waiting = cluster.sbatch("sleep 600", directory=tmp_path, nodes=1, options=later)
    listed = cluster.on("ctl", ["hpclaunch", "status"])
    assert f"\n{name} " in listed
    assert f"\n{waiting.id} " in listed
    assert "pending" in listed
    assert f"job {waiting.id}: it is PENDING" in refused(cluster, "status", str(waiting.id))
    cluster.on("ctl", ["scancel", str(waiting.id)])

    broken = tmp_path / "bin" / "srun"
    broken.parent.mkdir()
    broken.write_text(
        "#!/bin/sh\necho 'srun: a warning\nsrun: error: busy\nand so on' >&2; exit 1\n"
    )
    broken.chmod(0o755)
    asked = ["sh", "-c", f"PATH='{broken.parent}':$PATH hpclaunch status"]
    assert re.search(rf"(?m)^{job.id} +running: srun: error: busy$", cluster.on("ctl", asked))

    (tmp_path / "look").touch()
    eventually("the output of status within the job", lambda: f"{name} " in job.output)

    text = cluster.on("ctl", ["hpclaunch", "notice", str(job.id)])
    assert text == f"{name}: notice asked for\n"
    eventually("notice", lambda: len(list(tmp_path.glob("noticed-*"))) == 4)
    cluster.on("ctl", ["hpclaunch", "restart", str(job.id)])
    eventually("round 1", lambda: wait_until_running(cluster, job.id)["job"]["round"] == 1)
    assert wait_until_running(cluster, job.id)["job"]["restarts"] == 0
    (tmp_path / "over").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert f"{name} " in ended.output
    for command in ("status", "stop"):
        assert f"error: job {job.id} is over\n" in refused(cluster, command, str(job.id))


def test_a_heterogeneous_job(cluster: Cluster, tmp_path: Path, script: Path) -> None:
    body = f"srun --het-group=0,1 {SCRIPTS}/agent.sh --nproc 2 '{script}'"
    components = [":", "--nodes=1", "--ntasks-per-node=1"]
    job = cluster.sbatch(body, directory=tmp_path, nodes=1, options=components)
    launch = wait_until_running(cluster, job.id)
    assert launch["slurm_id"] == str(job.id)
    assert [agent["host"] for agent in launch["job"]["agents"]] == ["n1", "n2"]
    second = cluster.on("ctl", ["hpclaunch", "status", f"{job.id}+1"])
    assert second.startswith(f"{launch['name']}  running for ")
    stacks = cluster.on("ctl", ["hpclaunch", "stacks", str(job.id), "--rank", "3"])
    assert stacks.startswith("rank 3 on n2 ")
    cluster.on("ctl", ["hpclaunch", "stop", str(job.id)])
    assert job.wait().code == 143


def test_only_its_user_sees_and_ends_a_job(cluster: Cluster) -> None:
    """Neither root nor another user sees the job or may act on it."""
    directory = cluster.directory_of(USER)
    script = directory / "stepping.py"
    script.write_text(STEPPING)
    script.chmod(0o644)
    body = f"srun {SCRIPTS}/agent.sh --nproc 2 {script}"
    job = cluster.sbatch(body, directory=directory, nodes=2, user=USER)
    launch = wait_until_running(cluster, job.id, user=USER)
    here = status(cluster, host="n1", user=USER)
    assert [each["name"] for each in here] == [launch["name"]]
    for user, host in (("daemon", "n1"), ("daemon", "ctl")):
        assert status(cluster, str(job.id), host=host, user=user) == []
        for request in ("status", "stop", "restart", "notice"):
            refused(cluster, request, str(job.id), host=host, user=user)
            refused(cluster, request, launch["name"], host=host, user=user)
    assert status(cluster, launch["name"], host="n1") == []  # not even root sees it
    after = wait_until_running(cluster, job.id, user=USER)
    assert (after["pid"], after["job"]["round"]) == (launch["pid"], 0)
    cluster.on("ctl", ["hpclaunch", "stop", str(job.id)], user=USER)
    ended = job.wait()
    assert ended.code == 143, str(ended)
    assert "ended by hpclaunch stop" in ended.output
    assert "not passed on" not in ended.output
