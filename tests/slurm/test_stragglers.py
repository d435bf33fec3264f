"""Ranks that the others wait for, on a real cluster: they are named, and replaced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .cluster import Cluster, eventually
from .conftest import SCRIPTS, Launch

PACING = SCRIPTS / "pacing.py"


SAMPLES = {"sampling": 4.0}  # seconds between two of them


def saved_steps(directory: Path) -> int:
    """Return the last step of this round that was saved; each round counts from 0."""
    saved = directory.glob("saved/step-*.pt")
    return max((int(path.stem.partition("-")[2]) for path in saved), default=0)


@pytest.mark.timeout(300)
def test_a_spare_takes_the_place_of_a_straggler(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    job = launch(
        *("--nproc", 1, "--nnodes", 2, "--checkpoint-dir", "saved", "--replace-stragglers"),
        PACING,
        nodes=3,
        env={"SLOW": "loader:n2:1.8", "SAVES": "saved", "SECONDS": "120", "UNTIL": "enough"},
        timing=SAMPLES,
    )
    job.says("ending the round: a spare takes the place of n2", timeout=100)
    job.says("resuming from")
    for path in tmp_path.glob("saved/step-*.pt"):  # of the first round
        path.unlink()
    # Three samples of up to 40 steps each
    eventually("more samples", lambda: saved_steps(tmp_path) > 130, timeout=100)
    (tmp_path / "enough").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    named = re.findall(r"^hpclaunch: (.*) is a straggler: .*\n  (.*)", ended.output, re.M)
    assert [who for who, _ in named] == ["rank 1 on n2"]
    assert named[0][1].startswith("it waits, but not for a CPU or a disk")
    (steps,) = re.findall(r"^(\d+) steps", ended.output, re.M)
    assert int(steps) > 0


def test_a_node_behind_a_slow_network(cluster: Cluster, launch: Launch) -> None:
    """What it sends waits in a queue. No rank computes for longer than the others."""
    job = launch("--nproc", 1, PACING, nodes=3, env={"SECONDS": "120"}, timing=SAMPLES)
    job.says("rank 0 trains")
    queue = ["rate", "2mbit", "burst", "4kb", "latency", "1s"]
    cluster.on("n2", ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *queue])
    try:
        job.says("n2 is a straggler", timeout=100)
        job.says("the network: its messages take")
    finally:
        cluster.on("n2", ["tc", "qdisc", "del", "dev", "eth0", "root"])
        job.cancel()
    assert re.findall(r"^hpclaunch: (.*) is a straggler", job.wait().output, re.M) == ["n2"]
