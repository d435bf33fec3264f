"""The network is in parts for a while. Who has saved which epoch tells who has trained."""

from __future__ import annotations

import importlib.util
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from .cluster import Cluster, eventually
from .conftest import Launch
from .hosts import why_no_firewall
from .training import ENOUGH, finish, progress, saves, train, writers

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


class Parts:
    """A training on four nodes, which are in parts now and then."""

    def __init__(self, launch: Launch, directory: Path, *options: object) -> None:
        self._saved, self._logs = directory / "saved", directory / "logs"
        options = (*options, "--grow", "now", "--log-dir", self._logs)
        self.job = train(launch, self._saved, *options, nodes=4)

    def only_one_side_trains(self, parted: AbstractContextManager[object], on: str) -> None:
        """`on` has rank 0 meanwhile. After it all take part again."""
        rounds = self._rounds()
        with parted:
            eventually("another round", lambda: self._rounds() > rounds)
            begun = len(writers(self._saved))
            progress(self._saved, 2)
            assert {host for _, host in writers(self._saved)[begun:]} == {on}
        eventually("all nodes", lambda: saves(self._saved)[-1][2] == 4)

    def _rounds(self) -> int:
        return len(list(self._logs.glob("round-*")))

    def finish(self) -> None:
        """All agents end well; no epoch was saved twice, none is left out."""
        ended = finish(self.job, self._saved)
        assert self.job.codes == dict.fromkeys(range(4), 0), str(ended)


def test_only_one_side_trains(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    parts = Parts(launch, tmp_path, "--nnodes", "1:4")
    for cut_off, on in (
        (["n2"], "n1"),
        (["n1", "n2", "n3"], "n1"),  # most of the nodes, and Slurm is with the rest
        (["n1"], "n4"),  # the head
    ):
        parts.only_one_side_trains(cluster.parted(cut_off), on)
    parts.finish()


HALVES = (["n1", "n2"], ["n3", "n4"])


def test_of_two_halves_the_one_with_the_head_trains(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """Where firewalls reset all connections between them, the agents of the other half look dead,
    and are not."""
    if why := why_no_firewall():
        pytest.skip(f"no firewall in this kernel: {why}")
    parts = Parts(launch, tmp_path, "--nnodes", "2:4")
    parts.only_one_side_trains(cluster.parted(HALVES[1]), "n1")
    for ways in ([HALVES, HALVES[::-1]], [HALVES], [HALVES[::-1]]):
        with ExitStack() as firewalls:
            for way in ways:
                firewalls.enter_context(cluster.refusing(*way))
            parts.only_one_side_trains(firewalls, "n1")
    parts.finish()


def test_a_half_that_was_cut_off_for_longer_than_the_job_trains_no_more(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """When it is back, the head has ended in order, and is not dead: nobody can say that it is."""
    saved = tmp_path / "saved"
    job = train(launch, saved, "--nnodes", "1:4", "--wait-for-nodes", 15, nodes=4)
    with cluster.parted(["n3", "n4"]):
        job.says("going on without n3, n4")
        (tmp_path / ENOUGH).touch()
        eventually("the end", lambda: {0, 1} <= job.codes.keys(), timeout=60)
    ended = finish(job, saved)
    assert (job.codes[0], job.codes[1]) == (0, 0), str(ended)
    assert job.codes[2] != 0
    assert job.codes[3] != 0


def test_cut_and_healed_within_the_time(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """Workers wait a little longer for one another, and nothing else happens."""
    saved, logs = tmp_path / "saved", tmp_path / "logs"
    job = train(launch, saved, "--nnodes", "1:3", "--log-dir", logs)
    for host in ("n1", "n3"):
        with cluster.parted([host]):
            time.sleep(1.5)
        progress(saved, 1)
    ended = finish(job, saved)
    assert ended.code == 0, str(ended)
    assert len(list(logs.glob("round-*"))) == 1, str(ended)
