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
@pytest.mark.parametrize(
    ("script", "nodes", "said", "last"),
    [("ddp", 2, "one worker for each of the", 7), ("mps_replicas", 1, "images/s ", 9)],
)
def test_it_trains(
    script: str, nodes: int, said: str, last: int, cluster: Cluster, tmp_path: Path
) -> None:
    """On nodes with GPUs that are none, so that it takes CPUs and gloo."""
    shutil.copytree(ROOT / "workers", tmp_path / "workers")
    body = (ROOT / "sbatch" / f"{script}.sbatch").read_text()
    assert len(body.splitlines()) < 10
    ended = cluster.sbatch(body, directory=tmp_path, nodes=nodes).wait()
    assert ended.code == 0, str(ended)
    assert said in ended.output
    (reached,) = re.findall(r"^accuracy (.*)$", ended.output, re.MULTILINE)
    assert float(reached) > 0.95
    assert (tmp_path / "checkpoints" / f"epoch-{last}.pt").exists()
