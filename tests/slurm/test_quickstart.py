"""docs/quickstart.md shows what is printed on a cluster."""

from __future__ import annotations

import importlib.util
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from console import follow, sections

import surroundings
import timed

from .cluster import Cluster, eventually
from .conftest import CALM, ROOT
from .job_scripts import Stop
from .recipes.jobs import ONE_THREAD

SECTIONS = sections(ROOT / "docs" / "quickstart.md")
LOSS = "When a node is lost"
NAMES = ["On a node with GPUs", "On several nodes", LOSS, "Save in memory"]


@pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn")
@pytest.mark.parametrize("title", NAMES)
def test_on_a_cluster(title: str, cluster: Cluster, tmp_path: Path) -> None:
    """Each node has one worker, without GPUs; c10d's warning about host names is hidden.

    On a laptop (tests/docs), the same script has the real scikit-learn.
    """
    shutil.copytree(ROOT / "workers", tmp_path / "workers")
    env = cluster.environment(tmp_path) | ONE_THREAD | {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    env["PYTHONPATH"] = surroundings.LIGHT_SKLEARN
    if title != LOSS:  # there, any line may follow, and the command line of an agent matters
        env |= timed.variables(env["PATH"], **CALM)

    def run(command: str) -> str:
        words = ["bash", "-c", command]
        return cluster.controller.run(words, env=env, cwd=tmp_path)

    def run_at_second_save(command: str) -> str:
        """Run a command that kills an agent while the second checkpoint is being saved."""
        if "pkill" not in command:
            return run(command)
        begun = "hpclaunch-logs/*/round-0/rank-0.out"  # the search for checkpoints is over
        eventually("the first round", lambda: list(tmp_path.glob(begun)))
        second_save = stops.enter_context(Stop(tmp_path / "kept" / "epoch-1.tmp"))
        second_save.wait_until_reached()
        return run(command)

    with ExitStack() as stops:
        follow(SECTIONS[title], run_at_second_save if title == LOSS else run, {})
