"""The ways in which ranks meet, over several nodes: in a launch, and again after a restart."""

from __future__ import annotations

import importlib.util
import re

import pytest

from .conftest import SCRIPTS, Launch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
]


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_ranks_meet_in_every_way(launch: Launch, start: str) -> None:
    cold = ["--cold"] if start == "cold" else []
    ended = launch("--nproc", 2, *cold, SCRIPTS / "meet.py", 29777, "file", nodes=2).wait()
    assert ended.code == 0, str(ended)
    assert "rank 1 on n1 was killed by SIGKILL; restart 1 of 3" in ended.output
    told = re.findall(r"^(\w+), round (\d): rank (\d) of 4 has met all$", ended.output, re.M)
    assert sorted(told) == sorted((start, r, rank) for r in "01" for rank in "0123")
