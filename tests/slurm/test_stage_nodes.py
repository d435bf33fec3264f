"""Checkpoints in the memory of several nodes: a lost node costs a read from another one's memory.

Storage cannot be written until the training has continued, so what it resumes from was in memory.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from .cluster import Cluster, Job, eventually
from .conftest import AGENT, PATIENT, SCRIPTS, WORKER, Launch
from .scripts import resume

MEMORY = "/dev/shm"  # each host has its own
OPTIONS = ("--nproc", 1, "--stage", "--checkpoint-dir", "saved")
TIMING = {"loss": 6.0}  # seconds; a busy machine delays no agent for this long
OWN = rf"{AGENT}|{WORKER}|hpclaunch\.|^\(template\)"  # all processes of a launch
LAST = 6
# Rank 0 saves every step, and keeps the last two. The first round stays at step 3. Later ones end
# once storage can be written.
TRAIN = f"""
import os, socket, sys, time
from pathlib import Path
sys.path.insert(0, {str(SCRIPTS)!r})
from resume import load_checkpoint, save
directory, rank = Path(sys.argv[1]), os.environ["RANK"]
done = load_checkpoint(os.environ["HPCLAUNCH_CHECKPOINT"], "")
print(f"rank {{rank}} on {{socket.gethostname()}} begins at {{done}}", flush=True)
for step in range(done + 1, {LAST} + 1):
    if rank == "0":
        save(step, directory / "draft.tmp")
        (directory / "draft.tmp").rename(directory / f"step-{{step}}.pt")
        (directory / f"step-{{step - 2}}.pt").unlink(missing_ok=True)
    while step == 3 and not done and not Path("writable").exists():
        time.sleep(0.05)
while not Path("writable").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    (tmp_path / "saved").mkdir()
    return path


@contextmanager
def full(cluster: Cluster, path: Path, *nodes: str) -> Iterator[None]:
    """Let storage be empty on these nodes, and take no files."""
    for node in nodes:
        cluster.on(node, ["mount", "-t", "tmpfs", "-o", "nr_inodes=1", "tmpfs", str(path)])
    try:
        yield
    finally:
        for node in nodes:
            cluster.on(node, ["umount", "-l", str(path)])
    (path.parent / "writable").touch()


def copies(cluster: Cluster, node: str, name: str) -> list[str]:
    """Return the paths of files of this name in the memory of a node."""
    return cluster.on(node, ["find", MEMORY, "-name", name]).split()


def until_saved(cluster: Cluster, *nodes: str) -> None:
    def saved() -> bool:
        return all(copies(cluster, node, "step-3.pt") for node in nodes)

    eventually(f"step 3 in the memory of {nodes}", saved)


def kill_node(cluster: Cluster, node: str) -> None:
    """Kill everything of the launch on a node, so that nobody can confirm or copy anything."""
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for process in cluster.processes(OWN, host=node):
            with suppress(ProcessLookupError):  # killed with its parent
                process.kill(signum)


def until_resumed(job: Job, ranks: int) -> None:
    def resumed() -> bool:
        return len(set(re.findall(r"rank (\d) on \S+ begins at 3", job.output))) == ranks

    eventually("workers that resume from step 3", resumed)


def require_all_on_storage(job: Job, *tasks: int) -> str:
    """Wait for the end of the job. These agents have ended well. Return the output."""
    ended = job.wait()
    assert {job.codes[task] for task in tasks} == {0}, str(ended)
    saved = {path.name for path in (job.directory / "saved").iterdir()}
    assert f"step-{LAST}.pt" in saved
    assert resume.load_checkpoint(str(job.directory / "saved" / f"step-{LAST}.pt"), "") == LAST
    assert f"resuming from {job.directory}/saved/step-3.pt" in ended.output
    assert "in memory" in ended.output
    return ended.output


def require_no_memory_used(cluster: Cluster, *nodes: str) -> None:
    def gone() -> bool:
        return not any(copies(cluster, node, "step-*.pt") for node in nodes)

    eventually("memory without checkpoints", gone)


def test_the_node_of_rank_0_is_lost(
    cluster: Cluster, launch: Launch, script: Path, tmp_path: Path
) -> None:
    """The head is lost with it. Both other nodes have the checkpoint before their workers start."""
    with full(cluster, tmp_path / "saved", "n1", "n2", "n3"):
        job = launch("--nnodes", "2:3", *OPTIONS, script, "saved", nodes=3, timing=TIMING)
        until_saved(cluster, "n1", "n2")
        kill_node(cluster, "n1")
        until_resumed(job, 2)
    output = require_all_on_storage(job, 1, 2)
    assert "without n1" in output
    assert "--stage: nodes have fetched" in output
    require_no_memory_used(cluster, "n2", "n3")


def test_the_agent_of_rank_0_is_killed(
    cluster: Cluster, launch: Launch, script: Path, tmp_path: Path
) -> None:
    with full(cluster, tmp_path / "saved", "n1", "n2"):
        job = launch("--nnodes", "1:2", *PATIENT, *OPTIONS, script, "saved", nodes=2)
        until_saved(cluster, "n1", "n2")
        agent = cluster.process(AGENT, host="n1")
        agent.kill()
        until_resumed(job, 1)
    require_all_on_storage(job, 1)
    require_no_memory_used(cluster, "n1", "n2")


def test_a_killed_worker(cluster: Cluster, launch: Launch, script: Path, tmp_path: Path) -> None:
    """Every node resumes from its own memory, also the one that has saved nothing."""
    with full(cluster, tmp_path / "saved", "n1", "n2"):
        job = launch(*OPTIONS, script, "saved", nodes=2)
        until_saved(cluster, "n1")
        job.says("rank 1 on n2 begins")
        worker = cluster.process(WORKER, host="n2")
        worker.kill()
        until_resumed(job, 2)
    require_all_on_storage(job, 0, 1)
    (facts,) = tmp_path.glob("hpclaunch-logs/*/facts.jsonl")
    began = [json.loads(line) for line in facts.read_text().splitlines() if "StageBegan" in line]
    assert len(began) == 1
    require_no_memory_used(cluster, "n1", "n2")


def test_a_node_without_such_a_directory_makes_all_save_on_storage(
    cluster: Cluster, launch: Launch, script: Path, tmp_path: Path
) -> None:
    (tmp_path / "writable").touch()
    cluster.on("n2", ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", MEMORY])
    try:
        ended = launch(*OPTIONS, script, "saved", nodes=2).wait()
    finally:
        cluster.on("n2", ["umount", "-l", MEMORY])
    assert ended.code == 0, str(ended)
    assert "--stage: the script saves to saved itself: n2: Read-only file system" in ended.output
    assert (tmp_path / "saved" / f"step-{LAST}.pt").exists()
    require_no_memory_used(cluster, "n1")
