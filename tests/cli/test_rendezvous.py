"""The ways in which ranks meet, on one machine: in a launch, and again after a restart."""

import re
from pathlib import Path

import pytest
from launching import hpclaunch, script

from surroundings import free_ports

MEET = Path(__file__).parents[1] / "slurm" / "scripts" / "meet.py"

# After the restart.
ENDS = """
for port in sys.argv[3:]:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    parts = [torch.empty(3) for _ in range(2)]
    dist.all_gather(parts, torch.ones(3))
    dist.destroy_process_group()
    del model
print("came to the end")
"""
GROUPS = 12
pytestmark = [pytest.mark.starts, pytest.mark.torch]


@pytest.fixture(scope="module", params=["warm", "cold"])
def launched(request, starts, tmp_path_factory):
    """Return how the workers of a launch were started, and the launch, which has ended."""
    directory = tmp_path_factory.mktemp(request.param)
    text, runs = MEET.read_text(), "main(*sys.argv[1:])"
    assert runs in text
    path = script(directory, text.replace(runs, "main(*sys.argv[1:3])") + ENDS)
    options = ["--cold"] if request.param == "cold" else []
    first, *ports = free_ports(1 + GROUPS)
    words = ("--nproc", 2, *options, path, first, "file", *ports)
    return request.param, hpclaunch(*words, cwd=directory)


def test_ranks_meet_in_every_way(launched):
    start, done = launched
    assert done.returncode == 0, done.stderr
    assert "rank 1 on " in done.stderr
    assert "was killed by SIGKILL; restart 1 of 3" in done.stderr
    printed = re.findall(r"^(\w+), round (\d): rank (\d) of 2 has met all$", done.stdout, re.M)
    assert sorted(printed) == sorted((start, r, rank) for r in "01" for rank in "01")


def test_groups_that_end_right_after_a_collective(launched):
    """About one in four hangs with torch 2.13 if the launcher does not prevent it."""
    _, done = launched
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("came to the end\n") == 2
