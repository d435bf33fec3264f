"""docs/quickstart.md shows what is printed on a cluster."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from console import follow, sections

import surroundings

from .cluster import Cluster
from .conftest import ROOT
from .recipes.jobs import ONE_THREAD

SECTIONS = sections(ROOT / "docs" / "quickstart.md")
NAMES = ["On a node with GPUs", "On several nodes", "When a node is lost", "Save in memory"]


@pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn")
@pytest.mark.parametrize("title", NAMES)
def test_on_a_cluster(title: str, cluster: Cluster, tmp_path: Path) -> None:
    """Each node has one worker, without GPUs; c10d's warning about host names is hidden.

    On a laptop (tests/docs), the same script has the real scikit-learn.
    """
    shutil.copytree(ROOT / "workers", tmp_path / "workers")
    env = cluster.environment(tmp_path) | ONE_THREAD | {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    env["PYTHONPATH"] = surroundings.LIGHT_SKLEARN

    def run(command: str) -> str:
        words = ["bash", "-c", command]
        return cluster.controller.run(words, env=env, cwd=tmp_path)

    follow(SECTIONS[title], run, {})
