"""Horovod's job script, unchanged: undisturbed, and with a worker killed. `make test-horovod`"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from .cluster import Cluster
from .job_scripts import reached, rounds, run, run_with_a_kill

spec = importlib.util.find_spec("horovod")
pytestmark = [pytest.mark.horovod, pytest.mark.skipif(spec is None, reason="needs horovod")]


def test_a_killed_worker_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """In both rounds, the ranks connect over the network between two nodes."""
    assert spec is not None
    assert spec.origin is not None
    env = {"PYTHONPATH": str(Path(spec.origin).parent.parent)}
    undisturbed = run(cluster, tmp_path / "a", "horovod_ddp", env=env)
    assert reached(undisturbed) > 0.95
    killed = run_with_a_kill(
        cluster,
        tmp_path / "b",
        "horovod_ddp",
        after="checkpoints/horovod_ddp/epoch-3.pt",
        stop="checkpoints/horovod_ddp/epoch-4.tmp",
        env=env,
    )
    assert rounds(tmp_path / "b") == 2
    assert "resuming after epoch 3\n" in killed.output
    assert reached(killed) == reached(undisturbed)
