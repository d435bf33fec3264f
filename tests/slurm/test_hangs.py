"""Ranks that hang on a real cluster: they are found, named, and replaced."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from .cluster import Cluster, Ended, Job
from .conftest import SCRIPTS, Launch, own_jobs
from .test_stalls import needs_fuse, stalling

HANGING = SCRIPTS / "hanging.py"
LIMIT = ("--hang-timeout", 4)


@pytest.fixture(scope="module")
def hung(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Ended]:
    """A training that hangs five times, and twice in a row for ranks of n2."""
    hangs = {"HANGS": "stopped:1:12 asleep:3:8 locked:2:8 skipped:2:8 end:0:0"}
    options = f"--nproc 2 --nnodes 2 {shlex.join(map(str, LIMIT))} --max-restarts 5"
    with own_jobs(cluster):
        job = cluster.sbatch(
            f"srun hpclaunch {options} {HANGING}",
            directory=tmp_path_factory.mktemp("hung"),
            env=hangs,
        )
        ended = job.wait(timeout=240)
    assert ended.code == 0, str(ended)
    return job, ended


def test_a_rank_that_hangs_is_named_and_the_training_goes_on(hung: tuple[Job, Ended]) -> None:
    job, ended = hung
    named = re.findall(r"^hpclaunch: rank (\d) on (n\d) hung; restart", ended.output, re.M)
    assert named == [("1", "n1"), ("3", "n2"), ("2", "n2"), ("2", "n3"), ("0", "n1")]
    lines = re.findall(r"^hangs in line ([1-9]\d*)", ended.output, re.M)
    assert len(lines) == 4
    for line in lines:
        assert re.search(
            rf"is in hanging\.py:{line}, |in hanging\.py:{line}, skipped", ended.output
        )
    assert len(re.findall(r"^rank \d is done", ended.output, re.M)) == 4 + 3
    evidence = job.directory / "hpclaunch-logs"
    (stacks,) = evidence.glob("*/round-1/evidence/rank-3.txt")
    assert "hanging.py" in stacks.read_text()
    assert stacks.stat().st_mode & 0o777 == 0o600


def test_a_node_whose_ranks_hang_again_is_replaced_by_a_spare(hung: tuple[Job, Ended]) -> None:
    _, ended = hung
    assert "n2 is cordoned: its workers have failed again, and there is a spare" in ended.output


def test_ranks_that_wait_for_one_another_in_many_ways(cluster: Cluster, launch: Launch) -> None:
    env = {"HANGS": "cut:2:8 swapped:1:9 unsent:3:8 pipeline:0:8 left:2:9"}
    job = launch("--nproc", 2, *LIMIT, "--max-restarts", 5, HANGING, nodes=2, env=env)
    ended = job.wait(timeout=180)
    assert ended.code == 0, str(ended)
    who = re.findall(r"^hpclaunch: (.*) hung; restart", ended.output, re.M)
    ranks = ["rank 1 on n1", "rank 3 on n2", "rank 0 on n1", "rank 2 on n2"]
    assert who == ["the workers", *ranks], str(ended)
    assert "all have begun it: a network that loses data" in ended.output
    assert "rank 2 on n2 has ended" in ended.output
    for line in re.findall(r"^hangs in line ([1-9]\d*)", ended.output, re.M):
        assert f" hanging.py:{line}, " in ended.output, str(ended)


@needs_fuse
def test_a_read_from_a_file_system_that_stalls(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    env = {"HANGS": "storage:0:8", "STALLING": str(tmp_path)}
    with stalling(cluster, tmp_path / "n1", "n1"):
        job = launch("--nproc", 1, *LIMIT, "--max-restarts", 1, HANGING, nodes=2, env=env)
        job.says("the workers hang")
        (tmp_path / "n1.stalls").unlink()  # what waits there cannot be killed
        ended = job.wait()
    assert ended.code == 0, str(ended)
    (line,) = re.findall(r"^hangs in line (\d+)", ended.output, re.M)
    assert f"it is in hanging.py:{line}, storage, in the kernel" in ended.output, str(ended)
