"""Lightning in a user's own script, where it detects by itself how it was started.

pip install -e '.[frameworks]'
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from .cluster import Cluster
from .recipes.jobs import submit, weights

missing = importlib.util.find_spec("pytorch_lightning") is None
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(missing, reason="needs pytorch_lightning"),
]


def test_lightning_on_one_node(cluster: Cluster, tmp_path: Path) -> None:
    """Start one task per device, as Lightning requires under Slurm."""
    ended = submit(cluster, tmp_path, "alliance/lightning_ddp.sh")
    weights(ended, world=2)
    assert ended.output.count("is of TorchElasticEnvironment") == 2, str(ended)
