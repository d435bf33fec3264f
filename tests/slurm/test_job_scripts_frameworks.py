"""The job scripts for Lightning, Accelerate and DeepSpeed, as they are: undisturbed, and with a
worker killed.

pip install -e '.[frameworks]'
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from surroundings import entered

from .cluster import Cluster
from .job_scripts import came_out_alike, reached, rounds, run, run_with_a_kill

PACKAGES = ("pytorch_lightning", "accelerate", "deepspeed", "sklearn")
missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")
BUILD = (
    "from deepspeed.accelerator import get_accelerator;"
    "get_accelerator().create_op_builder('ShareMemCommBuilder').load()"
)
ONE_EACH = ["--cpus-per-task=1"]  # and so one worker on each node, where there is no GPU


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


def changes_nothing(
    cluster: Cluster, directory: Path, name: str, *, after: str, **more: object
) -> None:
    """That a worker is killed once `after` is there. The other arguments: see job_scripts.py."""
    undisturbed = run(cluster, directory / "a", name, **more)
    assert reached(undisturbed) > 0.95
    killed = run_with_a_kill(cluster, directory / "b", name, after=after, **more)
    assert rounds(directory / "b") == 2
    assert "resuming " in killed.output, str(killed)
    assert reached(killed) == reached(undisturbed)


def test_lightning(cluster: Cluster, tmp_path: Path) -> None:
    """With its own checkpoints, and imported once on each node."""
    after = "checkpoints/lightning_ddp/epoch=1.ckpt"
    changes_nothing(cluster, tmp_path, "lightning_ddp", after=after, options=ONE_EACH)


def test_accelerate(cluster: Cluster, tmp_path: Path) -> None:
    """A directory that its script seals, with a part from each rank."""
    after = "checkpoints/accelerate_ddp/epoch-1/.complete"
    changes_nothing(cluster, tmp_path, "accelerate_ddp", after=after)


@pytest.mark.timeout(600)  # it may have to compile
@pytest.mark.skipif(entered == "locale", reason="DeepSpeed calls torch.compile: see test_start.py")
def test_deepspeed(cluster: Cluster, tmp_path: Path, extensions: Path) -> None:
    """ZeRO-3: killed while it saves, it goes on from what `latest` names."""
    env = {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(extensions)}
    killed = run_with_a_kill(
        cluster,
        tmp_path,
        "deepspeed_zero3",
        stop="checkpoints/deepspeed_zero3/epoch-4/zero_pp_rank_0_mp_rank_00_model_states.pt",
        options=ONE_EACH,
        env=env,
    )
    assert rounds(tmp_path) == 2
    assert "resuming after epoch 3\n" in killed.output, str(killed)
    came_out_alike(killed, epoch=4)
    assert reached(killed) > 0.95
    assert "attempting to detect MPI environment" not in killed.output, str(killed)
