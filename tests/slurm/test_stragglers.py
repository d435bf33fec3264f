"""Ranks that the others wait for, on a real cluster, are named and replaced."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import timed

from .cluster import Cluster, Job, JobResult, eventually
from .conftest import SCRIPTS, own_jobs, with_spare

PACING = SCRIPTS / "pacing.py"
SAMPLES = {"sampling": 4.0}  # seconds between two samples
SLOW = {"SLOW": "loader:n2:1.8", "SAVES": "saved", "SECONDS": "300", "UNTIL": "enough"}


@dataclass(frozen=True, slots=True)
class SlowedTraining:
    """A training on three nodes and a spare.

    First one node loads slowly, then another one has a slow network.
    """

    job: Job
    ended: JobResult
    loading: str  # the console of the first part
    sending: str  # the console of the second part


def saved_steps(directory: Path) -> int:
    """Return the last step of this round that was saved; each round counts from 0."""
    saved = directory.glob("saved/step-*.pt")
    return max((int(path.stem.partition("-")[2]) for path in saved), default=0)


@pytest.fixture(scope="module")
def slowed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> SlowedTraining:
    directory = tmp_path_factory.mktemp("slowed")
    options = "--nproc 1 --nnodes 3 --loss-timeout 30 --checkpoint-dir saved --replace-stragglers"
    env = SLOW | timed.variables(cluster.env["PATH"], **SAMPLES)
    with own_jobs(cluster):
        job = cluster.sbatch(
            f"{with_spare(3)} {options} {PACING}", directory=directory, nodes=4, env=env
        )
        job.says("ending the round: a spare takes the place of n2")
        job.says("resuming from")
        for path in directory.glob("saved/step-*.pt"):  # of the first round
            path.unlink()
        # Three samples of up to 40 steps each
        eventually("more samples", lambda: saved_steps(directory) > 130)
        loading = job.output
        queue = ["rate", "2mbit", "burst", "4kb", "latency", "1s"]
        cluster.on("n3", ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *queue])
        try:
            job.says("n3 is a straggler")
            job.says("the network: its messages take")
        finally:
            cluster.on("n3", ["tc", "qdisc", "del", "dev", "eth0", "root"])
        sending = job.output.removeprefix(loading)
        (directory / "enough").touch()
        return SlowedTraining(job, job.wait(), loading, sending)


def named(console: str) -> list[tuple[str, str]]:
    """Return all stragglers, each with the line that gives the cause."""
    return re.findall(r"^hpclaunch: (.*) is a straggler: .*\n  (.*)", console, re.M)


def test_a_spare_takes_the_place_of_a_straggler(slowed: SlowedTraining) -> None:
    assert slowed.ended.code == 0, str(slowed.ended)
    stragglers = named(slowed.loading)
    assert [who for who, _ in stragglers] == ["rank 1 on n2"]
    assert stragglers[0][1].startswith("it waits, mostly not for a CPU or a disk")
    (steps,) = re.findall(r"^(\d+) steps", slowed.ended.output, re.M)
    assert int(steps) > 0


def test_a_node_behind_a_slow_network(slowed: SlowedTraining) -> None:
    """Packets wait in a queue of the node. No rank computes for longer than the others."""
    assert [who for who, _ in named(slowed.sending)] == ["n3"]
