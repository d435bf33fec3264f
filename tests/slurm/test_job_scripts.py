"""The job scripts that users start from, as they are."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from .cluster import Cluster
from .conftest import ROOT


@pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn")
def test_ddp(cluster: Cluster, tmp_path: Path) -> None:
    """Two nodes with GPUs that are none, so that it counts CPUs and takes gloo."""
    shutil.copytree(ROOT / "workers", tmp_path / "workers")
    body = (ROOT / "sbatch" / "ddp.sbatch").read_text()
    assert len(body.splitlines()) < 10
    ended = cluster.sbatch(body, directory=tmp_path, nodes=2).wait()
    assert ended.code == 0, str(ended)
    assert "one worker for each of the" in ended.output
    (reached,) = re.findall(r"^accuracy (.*)$", ended.output, re.MULTILINE)
    assert float(reached) > 0.95
    assert (tmp_path / "checkpoints" / "epoch-7.pt").exists()
