"""A worker fails: one restart from a complete checkpoint, and the result of an undisturbed job."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from .cluster import Cluster, Job, JobResult
from .conftest import SCRIPTS, Launch, own_jobs

pytestmark = pytest.mark.torch

TRAIN = SCRIPTS / "train.py"
SNAPSHOT = SCRIPTS / "snapshot.py"
EPOCHS = 4

ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # the nodes share a few cores
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


@dataclass(frozen=True, slots=True)
class Run:
    """A training that ended: its checkpoints and its final number."""

    checkpoints: Path
    final: str


def finals(ended: JobResult) -> list[str]:
    """Return the final number of each training."""
    return re.findall(r"^final (.*)$", ended.output, re.MULTILINE)


def final(ended: JobResult) -> str:
    found = finals(ended)
    assert len(found) == 1, str(ended)
    return found[0]


def printed_lines(job: Job, number: int) -> list[list[str]]:
    """Return the lines in the files of each rank in a round, without those of gloo."""
    directory = job.directory / "hpclaunch-logs" / f"{job.id}.0" / f"round-{number}"
    files = [directory / f"rank-{rank}.out" for rank in range(2)]
    return [re.sub(r"^\[Gloo\].*\n", "", f.read_text(), flags=re.M).splitlines() for f in files]


def hashes(directory: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in directory.iterdir()}


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("undisturbed")
    command = f"srun hpclaunch --nproc 2 {TRAIN} --epochs {EPOCHS} --dir saved"
    with own_jobs(cluster):
        ended = cluster.sbatch(command, directory=directory, nodes=1, env=ONE_THREAD).wait()
        assert ended.code == 0, str(ended)
    return Run(directory / "saved", final(ended))


@needs_torch
def test_a_killed_worker_costs_one_restart_and_changes_nothing(
    launch: Launch, undisturbed: Run
) -> None:
    """Rank 1 is killed within epoch 2: all ranks resume from the end of epoch 1."""
    arguments = (TRAIN, "--epochs", EPOCHS, "--dir", "saved", "--fail", "0:2:1")
    job = launch("--nproc", 1, "--checkpoint-dir", "saved", *arguments, nodes=2, env=ONE_THREAD)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert job.codes == {0: 0, 1: 0}
    assert "rank 1 on n2 was killed by SIGKILL; restart 1 of 3\n" in ended.output
    assert ended.output.count("restart 1 of 3") == 1
    assert "restart 2" not in ended.output
    newest = job.directory / "saved" / "epoch-1.pt"
    assert f"resuming from {newest} (torch.save, epoch 1, by its name)\n" in ended.output
    for rank, lines in enumerate(printed_lines(job, 1)):
        assert lines[0] == f"rank {rank} starts at epoch 2 from {newest}"
    assert final(ended) == undisturbed.final


def cut_short(path: Path) -> None:
    with path.open("r+b") as f:
        f.truncate(path.stat().st_size // 2)


def lose_a_page(path: Path) -> None:
    """Overwrite a page with zeros, as after a power failure before the file was on the disk."""
    with path.open("r+b") as f:
        f.seek(path.stat().st_size // 2)
        f.write(bytes(4096))


@needs_torch
def test_damaged_checkpoints_are_passed_over(
    launch: Launch, tmp_path: Path, undisturbed: Run
) -> None:
    saved = tmp_path / "saved"
    shutil.copytree(undisturbed.checkpoints, saved)
    lose_a_page(saved / "epoch-3.pt")
    cut_short(saved / "epoch-2.pt")
    before = hashes(saved)
    arguments = (TRAIN, "--epochs", EPOCHS, "--dir", "new")
    options = ("--nproc", 2, "--checkpoint-dir", saved)
    ended = launch(*options, *arguments, nodes=1, env=ONE_THREAD).wait()
    assert ended.code == 0, str(ended)
    assert "skipping checkpoint epoch-3.pt: damaged" in ended.output
    assert "skipping checkpoint epoch-2.pt: cut short or still being written" in ended.output
    newest = saved / "epoch-1.pt"
    assert f"resuming from {newest} (torch.save, epoch 1, by its name)\n" in ended.output
    assert hashes(saved) == before
    assert final(ended) == undisturbed.final


@needs_torch
def test_each_snapshot_of_the_same_name_is_progress(launch: Launch, tmp_path: Path) -> None:
    """Despite --max-restarts 1, the job survives four faults, each an epoch or two after the last.

    Then the same workers train once more, undisturbed, to the same result.
    """
    options = ("--nproc", 2, "--max-restarts", 1, "--checkpoint-dir", ".")
    arguments = (SNAPSHOT, "snapshot.pt", 8, "--die", 2, 3, 5, 6, "--again", "again.pt")
    killed = launch(*options, *arguments, nodes=1, env=ONE_THREAD).wait()
    assert killed.code == 0, str(killed)
    assert killed.output.count("was killed by SIGKILL; restart 1 of 1\n") == 1, str(killed)
    without_restarts = "the job ends, unless a checkpoint was saved since the last start\n"
    assert killed.output.count(without_restarts) == 3, str(killed)
    snapshot = tmp_path / "snapshot.pt"
    assert killed.output.count(f"resuming from {snapshot} (torch.save, by time)\n") == 4
    for rank in (0, 1):
        starts = re.findall(rf"\brank {rank} starts at epoch (\d+)$", killed.output, re.MULTILINE)
        assert starts == ["0", "2", "3", "5", "6", "0"], str(killed)
    after_faults, undisturbed = finals(killed)
    assert after_faults == undisturbed


@needs_torch
def test_without_a_new_snapshot_restarts_are_used_up(launch: Launch) -> None:
    """Two faults happen in the same epoch, without a save between them."""
    options = ("--nproc", 2, "--max-restarts", 1, "--checkpoint-dir", ".")
    arguments = (SNAPSHOT, "snapshot.pt", 8, "--die", 2, 2)
    ended = launch(*options, *arguments, nodes=1, env=ONE_THREAD).wait()
    assert ended.code == 137, str(ended)
    assert "rank 0 starts at epoch 2\n" in ended.output, str(ended)
