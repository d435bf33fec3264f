"""Ranks that hang on a real cluster: they are found, named, and replaced."""

from __future__ import annotations

import re
from pathlib import Path

from .cluster import Cluster
from .conftest import SCRIPTS, Launch
from .test_stalls import needs_fuse, stalling

HANGING = SCRIPTS / "hanging.py"
LIMIT = ("--hang-timeout", 4)


def test_a_rank_that_hangs_is_named_and_the_training_goes_on(
    cluster: Cluster, launch: Launch
) -> None:
    hangs = "asleep:3:8 stopped:1:12 skipped:2:8 end:0:0"
    job = launch("--nproc", 2, *LIMIT, "--max-restarts", 4, HANGING, nodes=2, env={"HANGS": hangs})
    ended = job.wait(timeout=180)
    assert ended.code == 0, str(ended)
    named = re.findall(r"^hpclaunch: rank (\d) on (n\d) hung; restart", ended.output, re.M)
    assert named == [("3", "n2"), ("1", "n1"), ("2", "n2"), ("0", "n1")]
    lines = re.findall(r"^hangs in line ([1-9]\d*)", ended.output, re.M)
    for line in lines:
        assert re.search(
            rf"is in hanging\.py:{line}, |in hanging\.py:{line}, skipped", ended.output
        )
    assert len(re.findall(r"^rank \d is done", ended.output, re.M)) == 4 + 3
    evidence = job.directory / "hpclaunch-logs"
    (stacks,) = evidence.glob("*/round-0/evidence/rank-3.txt")
    assert "hanging.py" in stacks.read_text()
    assert stacks.stat().st_mode & 0o777 == 0o600


def test_a_node_whose_ranks_hang_again_is_replaced_by_a_spare(
    cluster: Cluster, launch: Launch
) -> None:
    env = {"HANGS": "asleep:3:8 locked:2:8"}
    job = launch("--nproc", 2, "--nnodes", 2, *LIMIT, HANGING, nodes=3, env=env)
    ended = job.wait(timeout=120)
    assert ended.code == 0, str(ended)
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
