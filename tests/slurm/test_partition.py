"""The network is in parts for a while. Who has saved which epoch tells who has trained."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from .cluster import Cluster, eventually
from .conftest import Launch
from .hosts import why_no_firewall
from .training import ENOUGH, finish, progress, saves, train, writers


class PartedTraining:
    """A training on four nodes, which are in parts now and then."""

    def __init__(self, launch: Launch, directory: Path, *options: object) -> None:
        self._saved, self._logs = directory / "saved", directory / "logs"
        options = (*options, "--grow", "now", "--log-dir", self._logs)
        self.job = train(launch, self._saved, *options, nodes=4)

    def only_one_side_trains(
        self, cut: AbstractContextManager[object], phase: str, on: str
    ) -> None:
        """`on` has rank 0 during the cut. After it all take part again."""
        rounds = self._rounds()
        with cut:
            eventually(f"another round: {phase}", lambda: self._rounds() > rounds)
            begun = len(writers(self._saved))
            progress(self._saved, 2)
            assert {host for _, host in writers(self._saved)[begun:]} == {on}
        eventually(f"all nodes after {phase}", lambda: saves(self._saved)[-1][2] == 4)

    def _rounds(self) -> int:
        return len(list(self._logs.glob("round-*")))

    def finish(self) -> None:
        """End the training: all agents end well; no epoch was saved twice, none is left out."""
        ended = finish(self.job, self._saved)
        assert self.job.codes == dict.fromkeys(range(4), 0), str(ended)


@pytest.mark.usefixtures("light_torch")
@pytest.mark.timeout(400)
def test_only_one_side_trains(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    training = PartedTraining(launch, tmp_path, "--nnodes", "1:4")
    for cut_off, on in (
        (["n2"], "n1"),
        (["n3", "n4"], "n1"),  # of two halves the one with the head
        (["n1", "n2", "n3"], "n1"),  # most of the nodes, and Slurm is with the rest
        (["n1"], "n4"),  # the head
    ):
        phase = f"{', '.join(cut_off)} cut off"
        training.only_one_side_trains(cluster.parted(cut_off), phase, on)
    training.finish()


HALVES = (["n1", "n2"], ["n3", "n4"])
Way = tuple[list[str], list[str]]


@contextmanager
def refusing_all(cluster: Cluster, ways: Sequence[Way]) -> Iterator[None]:
    with ExitStack() as firewalls:
        for names, others in ways:
            firewalls.enter_context(cluster.refusing(names, others))
        yield


@pytest.mark.usefixtures("light_torch")
@pytest.mark.timeout(400)
def test_of_two_halves_the_one_with_the_head_trains(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """Firewalls reset all connections between them: the agents of the other half look dead, and
    are not."""
    if why := why_no_firewall():
        pytest.skip(f"no firewall in this kernel: {why}")
    training = PartedTraining(launch, tmp_path, "--nnodes", "2:4")
    for phase, ways in (
        ("both refuse", [HALVES, HALVES[::-1]]),
        ("the half with the head refuses", [HALVES]),
        ("the other half refuses", [HALVES[::-1]]),
    ):
        training.only_one_side_trains(refusing_all(cluster, ways), phase, "n1")
    training.finish()


@pytest.mark.usefixtures("light_torch")
def test_a_half_that_was_cut_off_for_longer_than_the_job_trains_no_more(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """Let it come back when the head has ended in order: nobody can say then that it was lost."""
    saved = tmp_path / "saved"
    options, timing = ("--nnodes", "1:4", "--wait-for-nodes", 20), {"goodbye": 4.0}
    job = train(launch, saved, *options, nodes=4, timing=timing)
    with cluster.parted(["n3", "n4"]):
        job.says("continuing without n3, n4")
        (tmp_path / ENOUGH).touch()
        eventually("the end", lambda: {0, 1} <= job.codes.keys())
        assert not job.codes.keys() & {2, 3}, "they gave up before the network was whole"
    ended = finish(job, saved)
    assert (job.codes[0], job.codes[1]) == (0, 0), str(ended)
    assert job.codes[2] != 0
    assert job.codes[3] != 0


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_cut_and_healed_within_the_time(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """Make the workers wait a little longer for one another: nothing else happens."""
    saved, logs = tmp_path / "saved", tmp_path / "logs"
    options, timing = ("--nnodes", "1:2", "--log-dir", logs), {"loss": 12.0}
    job = train(launch, saved, *options, nodes=2, timing=timing)
    for host in ("n1", "n2"):
        with cluster.parted([host]):
            time.sleep(1.5)
        progress(saved, 1)
    ended = finish(job, saved)
    assert ended.code == 0, str(ended)
    assert len(list(logs.glob("round-*"))) == 1, str(ended)
