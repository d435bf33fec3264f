"""The ways in which ranks meet, on one machine: in a launch, and again after a restart."""

import re
from pathlib import Path

import pytest
from launching import free_port, hpclaunch, script

MEET = Path(__file__).parents[1] / "slurm" / "scripts" / "meet.py"

ENDS = """
import sys

import torch
import torch.distributed as dist

for number in range(12):
    at = f"tcp://127.0.0.1:{sys.argv[1 + number]}"
    dist.init_process_group("gloo", init_method=at)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    parts = [torch.empty(3) for _ in range(2)]
    dist.all_gather(parts, torch.ones(3))
    dist.destroy_process_group()
    del model
"""
pytestmark = [pytest.mark.starts, pytest.mark.torch]


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_ranks_meet_in_every_way(tmp_path, start):
    cold = ["--cold"] if start == "cold" else []
    done = hpclaunch("--nproc", 2, *cold, MEET, free_port(), "file", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rank 1 on " in done.stderr
    assert "was killed by SIGKILL; restart 1 of 3" in done.stderr
    told = re.findall(r"^(\w+), round (\d): rank (\d) of 2 has met all$", done.stdout, re.M)
    assert sorted(told) == sorted((start, r, rank) for r in "01" for rank in "01")


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_groups_that_end_right_after_a_collective(tmp_path, start):
    """With torch 2.13 about every fourth hangs, if nothing is done about it."""
    cold = ["--cold"] if start == "cold" else []
    ports = [free_port() for _ in range(12)]
    done = hpclaunch("--nproc", 2, *cold, script(tmp_path, ENDS), *ports, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
