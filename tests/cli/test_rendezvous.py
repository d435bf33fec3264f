"""The ways in which ranks meet, on one machine: in a launch, and again after a restart."""

import re
from pathlib import Path

import pytest
from launching import free_port, hpclaunch

MEET = Path(__file__).parents[1] / "slurm" / "scripts" / "meet.py"

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_ranks_meet_in_every_way(tmp_path, start):
    cold = ["--cold"] if start == "cold" else []
    done = hpclaunch("--nproc", 2, *cold, MEET, free_port(), "file", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rank 1 on " in done.stderr
    assert "was killed by SIGKILL; restart 1 of 3" in done.stderr
    told = re.findall(r"^(\w+), round (\d): rank (\d) of 2 has met all$", done.stdout, re.M)
    assert sorted(told) == sorted((start, r, rank) for r in "01" for rank in "01")
