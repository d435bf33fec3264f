"""The job scripts that users start from, as they are: undisturbed, and with a worker killed."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import pytest

from .cluster import Cluster
from .job_scripts import reached, rounds, run, run_with_a_kill

needs_sklearn = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn"
)


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    nodes: int
    half: int  # epochs of all
    said: str = ""  # on the console
    victim: int = 1  # a rank


SCRIPTS = (
    Script("ddp", nodes=2, half=4, said="one worker for each of the"),
    Script("mps_replicas", nodes=1, half=5, said="images/s "),
)


@needs_sklearn
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_killed_worker_changes_nothing(script: Script, cluster: Cluster, tmp_path: Path) -> None:
    """On nodes with GPUs that are none, so that it takes CPUs and gloo."""
    undisturbed = run(cluster, tmp_path / "a", script.name, nodes=script.nodes)
    assert script.said in undisturbed.output
    assert reached(undisturbed) > 0.95
    saved = "checkpoints/epoch-{}.{}".format
    killed = run_with_a_kill(
        cluster,
        tmp_path / "b",
        script.name,
        nodes=script.nodes,
        after=saved(script.half - 1, "pt"),
        stop=saved(script.half, "tmp"),
        rank=script.victim,
    )
    assert rounds(tmp_path / "b") == 2
    assert f"resuming after epoch {script.half - 1}\n" in killed.output
    assert reached(killed) == reached(undisturbed)
