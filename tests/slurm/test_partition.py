"""The network is partitioned for a while. The hosts that saved epochs are those that trained."""

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
from .training import ENOUGH, finish, saves, train, wait_for_progress, writers

LOSS = 6.0  # seconds; a busy machine delays no agent for this long


class PartitionedTraining:
    """A training on four nodes whose network is partitioned now and then."""

    def __init__(self, launch: Launch, directory: Path, *options: object) -> None:
        self._saved, self._logs = directory / "saved", directory / "logs"
        options = (*options, "--loss-timeout", LOSS, "--grow", "now", "--log-dir", self._logs)
        self.job = train(launch, self._saved, *options, nodes=4)

    def only_one_side_trains(
        self, cut: AbstractContextManager[object], phase: str, on: str
    ) -> None:
        """Require that `on` has rank 0 during the cut, and that all nodes take part after it."""
        rounds = self._rounds()
        with cut:
            eventually(f"another round: {phase}", lambda: self._rounds() > rounds)
            begun = len(writers(self._saved))
            wait_for_progress(self._saved, 2)
            assert {host for _, host in writers(self._saved)[begun:]} == {on}
        eventually(f"all nodes after {phase}", lambda: saves(self._saved)[-1][2] == 4)

    def _rounds(self) -> int:
        return len(list(self._logs.glob("round-*")))

    def finish(self) -> None:
        """End the training; require exit codes 0, and that each epoch was saved once."""
        ended = finish(self.job, self._saved)
        assert self.job.codes == dict.fromkeys(range(4), 0), str(ended)


@pytest.mark.usefixtures("light_torch")
def test_only_one_side_trains(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    training = PartitionedTraining(launch, tmp_path, "--nnodes", "1:4")
    for cut_off, on in (
        (["n2"], "n1"),
        (["n3", "n4"], "n1"),  # of two halves, the one with the head trains
        (["n1", "n2", "n3"], "n1"),  # the majority trains, though Slurm is on the other side
        (["n1"], "n4"),  # the head
    ):
        phase = f"{', '.join(cut_off)} cut off"
        training.only_one_side_trains(cluster.partitioned(cut_off), phase, on)
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
def test_of_two_halves_the_one_with_the_head_trains(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """Firewalls reset all connections between the halves, as if the other agents were dead."""
    if why := why_no_firewall():
        pytest.skip(f"no firewall in this kernel: {why}")
    training = PartitionedTraining(launch, tmp_path, "--nnodes", "2:4")
    for phase, ways in (
        ("both refuse", [HALVES, HALVES[::-1]]),
        ("the half with the head refuses", [HALVES]),
        ("the other half refuses", [HALVES[::-1]]),
    ):
        training.only_one_side_trains(refusing_all(cluster, ways), phase, "n1")
    training.finish()


@pytest.mark.usefixtures("light_torch")
def test_a_half_that_is_cut_off_until_the_job_ends_does_not_train(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """The network is healed after a normal end of the head, which is not reported as a loss."""
    saved = tmp_path / "saved"
    options, timing = ("--nnodes", "1:4", "--wait-for-nodes", 30), {"goodbye": 4.0}
    job = train(launch, saved, *options, nodes=4, timing=timing)
    with cluster.partitioned(["n3", "n4"]):
        job.says("continuing without n3, n4")
        (tmp_path / ENOUGH).touch()
        eventually("the end", lambda: {0, 1} <= job.codes.keys())
        assert not job.codes.keys() & {2, 3}, "they did not give up before the network was healed"
    ended = finish(job, saved)
    assert (job.codes[0], job.codes[1]) == (0, 0), str(ended)
    assert job.codes[2] != 0
    assert job.codes[3] != 0


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_a_short_cut_only_delays_the_training(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """The workers wait a little longer for each other, and no round ends."""
    saved, logs = tmp_path / "saved", tmp_path / "logs"
    options, timing = ("--nnodes", "1:2", "--log-dir", logs), {"loss": 12.0}
    job = train(launch, saved, *options, nodes=2, timing=timing)
    for host in ("n1", "n2"):
        with cluster.partitioned([host]):
            time.sleep(1.5)
        wait_for_progress(saved, 1)
    ended = finish(job, saved)
    assert ended.code == 0, str(ended)
    assert len(list(logs.glob("round-*"))) == 1, str(ended)
