"""Ranks that hang on a real cluster are found, named, and replaced."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from .cluster import Cluster, Job, JobResult, eventually
from .conftest import SCRIPTS, own_jobs, with_spare
from .test_stalls import HAS_FUSE, needs_fuse, stalling

LONG = 1000.0  # seconds for a dozen hangs and restarts; far more than they take
HANGING = SCRIPTS / "hanging.py"
HANG = "the workers hang"
FIRST = "stopped:1:12 asleep:3:8 locked:2:8 skipped:2:8 end:0:0"  # n2 is at fault twice in a row
THEN = "cut:2:8 swapped:1:9 unsent:3:8 pipeline:0:8 left:2:9"
LAST = "storage:0:8" if HAS_FUSE else ""
HANGS = f"{FIRST} {THEN} {LAST}"


@dataclass(frozen=True, slots=True)
class HungTraining:
    """A training with one hang after the other."""

    job: Job
    ended: JobResult
    who: list[str]  # the rank that hung, for each round
    lines: list[str]  # the line of the rank at fault, for each round that has one


@pytest.fixture(scope="module")
def hung(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> HungTraining:
    directory = tmp_path_factory.mktemp("hung")
    options = "--nproc 2 --nnodes 2 --hang-timeout 6 --loss-timeout 30 --max-restarts 11"
    storage = stalling(cluster, directory / "n1", "n1") if HAS_FUSE else nullcontext()
    with own_jobs(cluster), storage:
        job = cluster.sbatch(
            f"{with_spare(2)} {options} {HANGING}",
            directory=directory,
            env={"HANGS": HANGS, "STALLING": str(directory)},
        )
        if HAS_FUSE:
            end_stall_when_found(job, directory / "n1.stalls")
        ended = job.wait(timeout=LONG)
    assert ended.code == 0, str(ended)
    who = re.findall(r"^hpclaunch: (.*) hung; restart", ended.output, re.M)
    lines = re.findall(r"^hangs in line ([1-9]\d*)", ended.output, re.M)
    assert len(who) == len(HANGS.split()), str(ended)
    assert len(lines) == len(who) - 3, str(ended)  # three hangs have no line
    return HungTraining(job, ended, who, lines)


def end_stall_when_found(job: Job, stalls: Path) -> None:
    """Wait until the stalled read is found, then end the stall: its process cannot be killed."""
    eventually("a read", lambda: stalls.exists() or job.cluster.has_ended(job.id), timeout=LONG)
    count = job.output.count(HANG)
    eventually("a hang", lambda: job.output.count(HANG) > count)
    stalls.unlink()


def test_a_rank_that_hangs_is_named_and_the_training_continues(hung: HungTraining) -> None:
    job, ended = hung.job, hung.ended
    ranks = ["rank 1 on n1", "rank 3 on n2", "rank 2 on n2", "rank 2 on n3", "rank 0 on n1"]
    assert hung.who[:5] == ranks, str(ended)
    for line in hung.lines[:4]:
        assert re.search(
            rf"is in hanging\.py:{line}, |in hanging\.py:{line}, skipped", ended.output
        ), str(ended)
    assert len(re.findall(r"^rank \d is done", ended.output, re.M)) == 4 + 3, str(ended)
    evidence = job.directory / "hpclaunch-logs"
    (stacks,) = evidence.glob("*/round-1/evidence/rank-3.txt")
    assert "hanging.py" in stacks.read_text()
    assert stacks.stat().st_mode & 0o777 == 0o600


def test_a_node_whose_ranks_hang_again_is_replaced_by_a_spare(hung: HungTraining) -> None:
    text = "n2 is cordoned: its workers have failed again, and there is a spare"
    assert text in hung.ended.output, str(hung.ended)


def test_ranks_that_wait_for_one_another_in_many_ways(hung: HungTraining) -> None:
    ended = hung.ended
    ranks = ["rank 1 on n1", "rank 3 on n3", "rank 0 on n1", "rank 2 on n3"]
    assert hung.who[5:10] == ["the workers", *ranks], str(ended)
    assert "all have begun it: a network that loses data" in ended.output, str(ended)
    assert "rank 2 on n3 has ended" in ended.output, str(ended)
    for line in hung.lines[4:7]:
        assert f" hanging.py:{line}, " in ended.output, str(ended)


@needs_fuse
def test_a_read_from_a_file_system_that_stalls(hung: HungTraining) -> None:
    ended = hung.ended
    assert ended.code == 0, str(ended)
    (line,) = hung.lines[7:]
    assert f"it is in hanging.py:{line}, storage, in the kernel" in ended.output, str(ended)
