"""All ways to initialise process groups, over several nodes: at a launch and after a restart."""

from __future__ import annotations

import importlib.util
import re

import pytest

from .conftest import SCRIPTS, Launch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
]


@pytest.mark.parametrize(("start", "nproc"), [("warm", 2), ("cold", 1)], ids=["warm", "cold"])
def test_ranks_meet_in_every_way(launch: Launch, start: str, nproc: int) -> None:
    """With cold starts, each rank imports torch in each round, so there are only two ranks."""
    cold = ["--cold"] if start == "cold" else []
    ended = launch("--nproc", nproc, *cold, SCRIPTS / "meet.py", 29777, "file", nodes=2).wait()
    assert ended.code == 0, str(ended)
    victim = "rank 1 on n1" if nproc == 2 else "rank 1 on n2"
    assert f"{victim} was killed by SIGKILL; restart 1 of 3" in ended.output
    met = re.findall(r"^(\w+), round (\d): rank (\d) of (\d) has met all$", ended.output, re.M)
    ranks = [(str(rank), str(2 * nproc)) for rank in range(2 * nproc)]
    assert sorted(met) == sorted((start, r, *rank) for r in "01" for rank in ranks)
