"""Frameworks that find out by themselves how they were started: Lightning, Accelerate, DeepSpeed.

pip install -e '.[frameworks]'
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from .cluster import Cluster
from .recipes.jobs import KILLS_RANK_1, Run, rounds, submit, weights

PACKAGES = ("pytorch_lightning", "accelerate", "deepspeed")
missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}"),
]
BUILD = (
    "from deepspeed.accelerator import get_accelerator;"
    "get_accelerator().create_op_builder('ShareMemCommBuilder').load()"
)


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path) -> Run:
    return partial(submit, cluster, tmp_path)


@pytest.fixture(scope="session")
def extensions() -> Path:
    """DeepSpeed compiles its part for CPUs on first use: once for this Python, not in every job."""
    directory = Path(sys.prefix) / "torch_extensions"
    for lock in directory.glob("*/lock"):  # of a build that was killed: it would wait for ever
        lock.unlink()
    env = os.environ | {"TORCH_EXTENSIONS_DIR": str(directory), "DS_ACCELERATOR": "cpu"}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"  # where its ninja is
    done = subprocess.run(
        [sys.executable, "-c", BUILD],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return directory


def test_lightning_on_one_node(run: Run) -> None:
    """A task for each device, as Lightning wants it under Slurm."""
    ended = run("alliance/lightning_ddp.sh")
    weights(ended, world=2)
    assert ended.output.count("is of TorchElasticEnvironment") == 2, str(ended)


def test_lightning_on_two_nodes(run: Run, tmp_path: Path) -> None:
    """One worker is lost, and the training resumes from Lightning's own checkpoint."""
    args = ["lightning_ddp.py", "--gpus=2", "--nodes=2", "--ckpt=ckpt"]
    ended = run("alliance/lightning_two_nodes.sh", *args, env=KILLS_RANK_1)
    weights(ended, world=4)
    assert rounds(tmp_path) == 2
    assert ended.output.count("is of TorchElasticEnvironment") == 4, str(ended)
    begun = re.findall(r"rank 0 begins epoch (\d)", ended.output)
    assert begun == ["0", "1", "2", "2"], str(ended)


def test_accelerate(run: Run) -> None:
    ended = run("csc/run-accelerate-gpu8.sh")
    weights(ended, world=4)
    locals_ = dict(re.findall(r"rank (\d) is local (\d), DistributedType.MULTI_CPU", ended.output))
    assert locals_ == {"0": "0", "1": "1", "2": "0", "3": "1"}, str(ended)


def test_deepspeed(run: Run, extensions: Path) -> None:
    """ZeRO-3 with the variables that spare it the discovery by MPI."""
    ended = run("csc/run-gpu8-deepspeed.sh", env={"TORCH_EXTENSIONS_DIR": str(extensions)})
    weights(ended, world=4)
    assert "Initializing TorchBackend in DeepSpeed with backend gloo" in ended.output, str(ended)
    assert "attempting to detect MPI environment" not in ended.output, str(ended)
    locals_ = dict(re.findall(r"rank (\d) is local (\d), told \2", ended.output))
    assert locals_ == {"0": "0", "1": "1", "2": "0", "3": "1"}, str(ended)
    assert len(re.findall(r"ZeRO 3, SLURM_TMPDIR is \S*/tmp$", ended.output, re.M)) == 4, str(ended)
