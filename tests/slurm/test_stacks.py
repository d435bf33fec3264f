"""hpclaunch stacks for a job on two nodes, from anywhere."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from .asking import PAUSE
from .cluster import Cluster, eventually
from .conftest import SCRIPTS

# All ranks wait until somebody opens the pipe for writing.
RESTING = """\
import os

def resting():
    open("over").close()

def resting_elsewhere():
    open("over").close()

(resting_elsewhere if os.environ["RANK"] == "2" else resting)()
"""
DEEP = """\
import os, threading, time

over = threading.Event()

def deep(n):
    deep(n - 1) if n else over.wait()

threads = [threading.Thread(target=deep, args=[80]) for _ in range(30)]
for thread in threads:
    thread.start()
while not os.path.exists("over"):
    time.sleep(0.1)
over.set()
"""
SHOWN = re.compile(
    r"^ranks 0-1,3: in resting.py:4, resting; .*\n"
    r"rank 2 on n2 \(pid \d+\): in resting.py:7, resting_elsewhere; .*\n",
    re.MULTILINE,
)
USER = "nobody"
# Options of the job that srun would inherit.
OPTIONS = ("--cpus-per-task=2", "--gres=gpu:2", "--mem=1000", "--distribution=cyclic")


def failing(cluster: Cluster, *words: str) -> str:
    """Return the output of a command that must end with 2."""
    command = ["sh", "-c", '"$@"; test $? = 2', "sh", "hpclaunch", "stacks", *words]
    return cluster.on("ctl", command)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "resting.py"
    path.write_text(RESTING)
    return path


def test_from_the_login_node_and_within_the_job(
    cluster: Cluster, tmp_path: Path, script: Path
) -> None:
    body = f"""
    srun {SCRIPTS}/agent.sh --nproc 2 '{script}' &
    until [ -e look ]; do sleep 0.1; done
    hpclaunch stacks $SLURM_JOB_ID
    echo here:
    hpclaunch stacks
    echo in a step:
    srun --overlap --nodes=1 --ntasks=1 hpclaunch stacks $SLURM_JOB_ID
    : <> over
    wait
    """
    os.mkfifo(tmp_path / "over")
    job = cluster.sbatch(body, directory=tmp_path, nodes=2, options=OPTIONS)
    look = ["sh", "-c", f"hpclaunch stacks {job.id} || true"]
    eventually("its stacks", lambda: SHOWN.search(cluster.on("ctl", look)), pause=PAUSE)

    whole = cluster.on("ctl", ["hpclaunch", "stacks", str(job.id), "--rank", "2"])
    assert whole.startswith("rank 2 on n2 ")
    assert "in resting_elsewhere\n" in whole
    assert "in resting\n" not in whole
    full = cluster.on("ctl", ["hpclaunch", "stacks", str(job.id), "--full"])
    assert [int(n) for n in re.findall(r"(?m)^rank (\d+) on n[12] ", full)] == [0, 1, 2, 3]
    assert "there are ranks 0-3" in failing(cluster, str(job.id), "--rank", "4")
    assert "no workers run here" in failing(cluster)

    (tmp_path / "look").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    whole, here, step = re.split(r"(?m)^(?:here|in a step):\n", ended.output)
    assert SHOWN.search(whole), str(ended)
    assert re.search(r"(?m)^ranks 0-1: in resting\.py:4, resting; ", here), str(ended)
    assert "rank 2" not in here
    assert SHOWN.search(step), str(ended)
    assert job.codes == {0: 0, 1: 0}


def test_jobs_that_have_no_workers(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.sbatch("sleep 600", directory=tmp_path, nodes=2)
    eventually("its start", lambda: str(job.id) in cluster.on("ctl", ["squeue", "-h", "-tR"]))
    assert f"error: job {job.id} has no workers" in failing(cluster, str(job.id))
    waiting = cluster.sbatch("true", directory=tmp_path, options=["--begin=now+1hour"])
    assert f"cannot look at job {waiting.id}: it is PENDING" in failing(cluster, str(waiting.id))
    assert "cannot look at job 4711: slurm_load_jobs error: Invalid" in failing(cluster, "4711")


def test_long_stacks_of_several_nodes_are_not_mixed(cluster: Cluster) -> None:
    """Show the stacks of an unprivileged user's job."""
    directory = cluster.directory_of(USER)
    script = directory / "deep.py"
    script.write_text(DEEP)
    script.chmod(0o644)
    body = f"srun {SCRIPTS}/agent.sh --nproc 4 {script}"
    job = cluster.sbatch(body, directory=directory, nodes=4, user=USER)
    look = ["sh", "-c", f"hpclaunch stacks {job.id} --full || true"]
    lines = 4 * 4 * 30 * 81
    eventually(
        "all stacks",
        lambda: cluster.on("ctl", look, user=USER).count(" in deep\n") == lines,
        pause=PAUSE,
    )
    (directory / "over").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
