"""The checkpoint from which all nodes resume: on a shared directory, or on each node's disk."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpclaunch.system.checkpoints import service

from .cluster import Cluster, JobResult, eventually
from .conftest import NEW_HEAD, PATIENT, SCRIPTS, WORKER, Launch
from .hosts import LIMIT
from .scripts import resume

RESUME = SCRIPTS / "resume.py"
HELPER = r"hpclaunch\.\w+\.|^\(template\)"  # the command line of a process beside an agent


@contextmanager
def disk(cluster: Cluster, path: Path, *nodes: str) -> Iterator[None]:
    """Cover the directory on each of these nodes by an empty one of its own."""
    for node in nodes:
        cluster.on(node, ["mount", "-t", "tmpfs", "tmpfs", str(path)])
    try:
        yield
    finally:
        for node in nodes:
            cluster.on(node, ["umount", "-l", str(path)])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Checkpoints of three steps, as of an earlier job."""
    directory = tmp_path / "saved"
    directory.mkdir()
    for step in (1, 2, 3):
        resume.save(step, directory / f"step-{step}.pt")
    return directory


def require_all_resume_from(ended: JobResult, name: str) -> None:
    assert ended.code == 0, str(ended)
    for rank in (0, 1):
        assert f"rank {rank} resumes from {name}\n" in ended.output, str(ended)


def test_a_node_sees_a_checkpoint_later(cluster: Cluster, launch: Launch, saved: Path) -> None:
    journals = saved.parent / "logs"
    options = ("--nproc", 1, "--checkpoint-dir", saved, "--log-dir", journals)
    with disk(cluster, saved, "n2"):
        script, timing = (RESUME, "--dir", saved, "--steps", 4), {"visible": LIMIT}
        job = launch(*options, *script, nodes=2, timing=timing)

        def missed() -> bool:
            texts = [path.read_text() for path in journals.glob("journal*.jsonl")]
            return any("there is no such file" in text for text in texts)

        eventually("a failed look at it", missed)
    require_all_resume_from(job.wait(), "step-3.pt")


def test_a_node_never_sees_a_checkpoint(cluster: Cluster, launch: Launch, saved: Path) -> None:
    """The job ends, since a start from the beginning could overwrite the user's checkpoints."""
    options = ("--nproc", 1, "--checkpoint-dir", saved)
    with disk(cluster, saved, "n2"):
        script = (RESUME, "--dir", saved, "--steps", 4)
        ended = launch(*options, *script, timing={"visible": 3.0}, nodes=2).wait()
    assert ended.code == 1, str(ended)
    assert f"n2 does not see {saved}/step-3.pt: there is no such file" in ended.output
    assert "--checkpoint-local is for one on each node" in ended.output
    assert "resumes from" not in ended.output


def test_a_disk_of_each_node(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """All resume from the newest checkpoint that each has, or all start from the beginning."""
    saved = tmp_path / "saved"
    saved.mkdir()
    options = ("--nproc", 1, "--checkpoint-dir", saved, "--checkpoint-local")
    script = (RESUME, "--dir", saved, "--each", "--steps")
    with disk(cluster, saved, "n1", "n2"):
        require_all_resume_from(launch(*options, *script, 3, nodes=2).wait(), "nothing")
        cluster.on("n2", ["rm", f"{saved}/step-3.pt"])
        ended = launch(*options, *script, 3, nodes=2).wait()
        require_all_resume_from(ended, "step-2.pt")
        assert "skipping checkpoint step-3.pt: n2 does not see it" in ended.output
        cluster.on("n1", ["sh", "-c", f"rm '{saved}'/*"])
        ended = launch(*options, *script, 1, nodes=2).wait()
        require_all_resume_from(ended, "nothing")


def test_a_checkpoint_that_makes_the_job_fail_is_passed_over(launch: Launch, saved: Path) -> None:
    options = ("--nproc", 1, "--checkpoint-dir", saved)
    script = (RESUME, "--dir", saved, "--steps", 4, "--breaks", "step-3.pt")
    ended = launch(*options, *script, nodes=2).wait()
    require_all_resume_from(ended, "step-2.pt")
    assert ended.output.count("hpclaunch: resuming from") == 3
    assert "skipping checkpoint step-3.pt: the job failed twice while" in ended.output
    assert (saved / "step-3.pt").exists()


def test_without_an_older_checkpoint_the_job_ends(launch: Launch, saved: Path) -> None:
    for step in (1, 2):
        (saved / f"step-{step}.pt").unlink()
    shutil.copy(saved / "step-3.pt", saved / "other.txt")
    options = ("--nproc", 1, "--checkpoint-dir", saved)
    script = (RESUME, "--dir", saved, "--steps", 4, "--breaks", "step-3.pt")
    ended = launch(*options, *script, nodes=2).wait()
    assert ended.code == 1, str(ended)
    assert "resumes from" not in ended.output


def test_a_head_that_cannot_search_checkpoints_is_replaced(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """On the head's node, the search process ends at once, each time."""
    program = inspect.getsourcefile(service)
    assert program is not None
    saved = tmp_path / "saved"
    options = ("--nproc", 1, "--nnodes", "2:3", *PATIENT, "--checkpoint-dir", saved)
    job = launch(*options, SCRIPTS / "simple.py", "--until", "go")
    job.wait_for_workers(3)
    job.forget()
    cluster.on("n1", ["mount", "--bind", "/dev/null", program])
    try:
        for process in cluster.processes("checkpoints.service", host="n1"):
            process.kill()
        worker = cluster.process(WORKER, host="n3")
        worker.kill()
        job.wait_for_workers(2)
        assert {env["hostname"] for env in job.environments().values()} == {"n2", "n3"}
        (job.directory / "go").touch()
        ended = job.wait()
    finally:
        cluster.on("n1", ["umount", "--lazy", program])
    assert job.codes == {0: 1, 1: 0, 2: 0}, str(ended)
    leaves = "the head on n1 leaves the job, and another takes over"
    assert f"{leaves}: cannot look for checkpoints in {saved}: " in ended.output
    assert NEW_HEAD.search(ended.output)


def test_a_member_has_five_processes_beside_its_workers(
    cluster: Cluster, launch: Launch, saved: Path
) -> None:
    """The member's search for checkpoints has ended. The head's node, with rank 0, has seven."""
    options = ("--nproc", 1, "--checkpoint-dir", saved)
    script = (SCRIPTS / "simple.py", "--until", "go")
    job = launch(*options, *script, nodes=2, timing={"agent.resuming.IDLE": 1.0})
    job.wait_for_workers(2)
    search = "checkpoints.service"
    eventually("the end of its search", lambda: not cluster.processes(search, host="n2"))
    assert len(cluster.processes(search, host="n1")) == 1
    for host, most in (("n1", 7), ("n2", 5)):
        beside = [p for p in cluster.processes(HELPER, host) if not re.search(WORKER, p.command)]
        assert 2 <= len(beside) <= most, beside
    (job.directory / "go").touch()
    assert job.wait().code == 0
