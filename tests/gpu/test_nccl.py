"""The real NCCL with several ranks on one GPU, in a script without special code for that."""

from __future__ import annotations

import re
import sys

import pytest

from .conftest import Run
from .jobs import SCRIPTS, Machine

SINCE = [2, 30]  # NCCL_MULTI_RANK_GPU_ENABLE
SCRIPT = SCRIPTS / "nccl.py"


def sums(output: str) -> list[str]:
    return sorted(re.findall(r"rank \d+ sums to \d+", output))


def test_a_gpu_of_its_own(run: Run) -> None:
    ended = run("--nproc", 1, SCRIPT)
    assert ended.returncode == 0, ended.stdout
    assert sums(ended.stdout) == ["rank 0 sums to 1"]


def test_two_on_one_gpu(run: Run, machine: Machine) -> None:
    """Depending on NCCL's version, it works, or fails at once with advice. It never hangs."""
    ended = run("--nproc", 2, "--max-restarts", 0, SCRIPT)
    if machine.torch["nccl"][:2] >= SINCE:
        assert ended.returncode == 0, ended.stdout
        assert "NCCL_MULTI_RANK_GPU_ENABLE" in ended.stdout
        assert sums(ended.stdout) == ["rank 0 sums to 2", "rank 1 sums to 2"]
    else:
        assert ended.returncode == 1, ended.stdout
        assert "2 workers share this GPU" in ended.stdout
        assert "--shared-backend gloo" in ended.stdout


def test_three_on_one_gpu(run: Run) -> None:
    ended = run("--nproc", 3, "--max-restarts", 0, SCRIPT)
    assert ended.returncode == 1, ended.stdout
    assert "--shared-backend gloo" in ended.stdout


@pytest.mark.parametrize("workers", [2, 8])
def test_gloo_in_place_of_nccl(run: Run, workers: int) -> None:
    ended = run("--nproc", workers, "--shared-backend", "gloo", SCRIPT)
    assert ended.returncode == 0, ended.stdout
    assert sums(ended.stdout) == [f"rank {r} sums to {workers}" for r in range(workers)]


def test_nccls_own_error(run: Run, machine: Machine) -> None:
    """NCCL up to 2.29 fails without the launcher's check too, so the check is not outdated."""
    if machine.torch["nccl"][:2] >= SINCE:
        pytest.skip("this NCCL can have two ranks on a GPU")
    unhooked = ("--no-python", "env", "-u", "HPCLAUNCH_RANKS_PER_GPU", "timeout", 60)
    ended = run("--nproc", 2, "--max-restarts", 0, *unhooked, sys.executable, SCRIPT)
    assert ended.returncode != 0
    assert "Duplicate GPU detected" in ended.stdout
