"""The network is in parts for a while. Who has saved which epoch tells who has trained."""

from __future__ import annotations

import importlib.util
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from .cluster import Cluster, eventually
from .conftest import Launch
from .hosts import why_no_firewall
from .training import EPOCHS, assert_right, progress, train, writers

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


@pytest.mark.parametrize(
    ("cut_off", "on"),
    [(["n3", "n4"], {"n1"}), (["n2"], {"n1"}), (["n1", "n2", "n3"], {"n1"}), (["n1"], {"n4"})],
    ids=["a half without the head", "a node", "the most, and Slurm is with the rest", "the head"],
)
def test_only_one_side_trains(
    cut_off: list[str], on: set[str], cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """No epoch is saved twice, none is left out, and after it all take part again."""
    saved, logs = tmp_path / "saved", tmp_path / "logs"
    job = train(launch, saved, "--nnodes", "1:4", "--grow", "now", "--log-dir", logs, nodes=4)
    with cluster.parted(cut_off):
        eventually("another round", lambda: len(list(logs.glob("round-*"))) > 1)
        begun = len(writers(saved))
        progress(job, begun + 2)
        assert {host for _, host in writers(saved)[begun:]} == on, job.output
    job.says("going on with")
    progress(job, EPOCHS - 1)
    ended = job.wait()
    assert job.codes == dict.fromkeys(range(4), 0), str(ended)
    assert [epoch for epoch, _ in writers(saved)] == list(range(EPOCHS)), str(ended)
    assert_right(ended)


HALVES = (["n1", "n2"], ["n3", "n4"])


@pytest.mark.parametrize("ways", [[HALVES, HALVES[::-1]], [HALVES], [HALVES[::-1]]], ids=str)
def test_a_host_that_refuses_may_be_alive(
    ways: list[tuple[list[str], list[str]]], cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """Firewalls reset all connections between two halves: the agents of the other half look dead,
    and are not. Only the half with the head trains."""
    if why := why_no_firewall():
        pytest.skip(f"no firewall in this kernel: {why}")
    saved, logs = tmp_path / "saved", tmp_path / "logs"
    job = train(launch, saved, "--nnodes", "2:4", "--grow", "now", "--log-dir", logs, nodes=4)
    with ExitStack() as firewalls:
        for way in ways:
            firewalls.enter_context(cluster.refusing(*way))
        eventually("another round", lambda: len(list(logs.glob("round-*"))) > 1)
        begun = len(writers(saved))
        progress(job, begun + 2)
        assert {host for _, host in writers(saved)[begun:]} == {"n1"}, job.output
    job.says("going on with")
    progress(job, EPOCHS - 1)
    ended = job.wait()
    assert [epoch for epoch, _ in writers(saved)] == list(range(EPOCHS)), str(ended)
    assert_right(ended)


def test_a_half_that_was_cut_off_for_longer_than_the_job_trains_no_more(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """When it is back, the head has ended in order, and is not dead: nobody can say that it is."""
    saved = tmp_path / "saved"
    job = train(launch, saved, "--nnodes", "1:4", "--wait-for-nodes", 30, nodes=4)
    with cluster.parted(["n3", "n4"]):
        eventually("the end", lambda: {0, 1} <= job.codes.keys(), timeout=60)
    ended = job.wait()
    assert (job.codes[0], job.codes[1]) == (0, 0), str(ended)
    assert job.codes[2] != 0
    assert job.codes[3] != 0
    assert [epoch for epoch, _ in writers(saved)] == list(range(EPOCHS)), str(ended)
    assert_right(ended)


@pytest.mark.parametrize("host", ["n1", "n3"])
def test_cut_and_healed_within_the_time(
    host: str, cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """Workers wait a little longer for one another, and nothing else happens."""
    job = train(launch, tmp_path / "saved", "--nnodes", "1:3", "--log-dir", tmp_path / "logs")
    with cluster.parted([host]):
        time.sleep(1.5)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert len(list((tmp_path / "logs").glob("round-*"))) == 1, str(ended)
    assert_right(ended)
