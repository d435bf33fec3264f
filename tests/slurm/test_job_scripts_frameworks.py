"""The job scripts for the Hugging Face Trainer, Accelerate, Lightning and DeepSpeed, unchanged:
undisturbed, and with a worker killed.

pip install -e '.[frameworks]'
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from surroundings import entered

from .cluster import Cluster, JobResult
from .job_scripts import reached, require_same_epoch, rounds, run, run_with_a_kill

PACKAGES = ("pytorch_lightning", "accelerate", "deepspeed", "sklearn", "transformers")
missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}"),
    pytest.mark.frameworks,
]
ONE_EACH = ["--cpus-per-task=1"]  # without GPUs, this means one worker per node


def require_same_result(
    cluster: Cluster, directory: Path, name: str, what: str = "accuracy", **more: Any
) -> JobResult:
    """Run a job script undisturbed and with a kill; require the same result, the number `what`.

    Return the result of the job with the kill. The other arguments are those of `run_with_a_kill`.
    """
    where = {key: more.pop(key) for key in ("after", "stop") if key in more}
    more.setdefault("options", ONE_EACH)
    undisturbed = run(cluster, directory / "a", name, **more)
    killed = run_with_a_kill(cluster, directory / "b", name, **where, **more)
    assert rounds(directory / "b") == 2
    assert reached(killed, what) == reached(undisturbed, what), f"{undisturbed}\n{killed}"
    return killed


def test_hf_trainer(cluster: Cluster, tmp_path: Path) -> None:
    """A worker is killed within an epoch, before it has written the last file of a checkpoint.

    The Trainer itself would load this checkpoint, since all other files exist.
    """
    stop = "checkpoints/hf_trainer/checkpoint-30/rng_state_1.pth"
    killed = require_same_result(cluster, tmp_path, "hf_trainer", "loss", stop=stop)
    lacks = r"rng_state_1.pth is missing: rank 1 of \d had not saved yet\n"
    assert re.search(f"skipping checkpoint checkpoint-30: {lacks}", killed.output), str(killed)
    assert "resuming from checkpoint-20\n" in killed.output, str(killed)
    losses = re.findall(r"^{'loss': .*'epoch': '0.9375'}$", killed.output, re.MULTILINE)
    assert len(losses) > 2, "printed by each node, and again after the kill"
    assert len(set(losses)) == 1, str(killed)
    assert reached(killed, "loss") < 2.3


def test_accelerate(cluster: Cluster, tmp_path: Path) -> None:
    """In the directory of a `save_state`, the part of the killed rank is missing."""
    stop = "checkpoints/accelerate_ddp/epoch-4/random_states_1.pkl"
    killed = require_same_result(cluster, tmp_path, "accelerate_ddp", stop=stop)
    lacks = r"random_states_1.pkl is missing: rank 1 of \d had not saved yet\n"
    assert re.search(f"skipping checkpoint epoch-4: {lacks}", killed.output), str(killed)
    assert "resuming after epoch 3\n" in killed.output, str(killed)
    require_same_epoch(killed, epoch=4)
    assert reached(killed) > 0.95


def test_lightning(cluster: Cluster, tmp_path: Path) -> None:
    """Lightning uses its own checkpoints, and is imported once per node."""
    after = "checkpoints/lightning_ddp/epoch=1.ckpt"
    killed = require_same_result(cluster, tmp_path, "lightning_ddp", after=after)
    assert "resuming from epoch=" in killed.output, str(killed)
    assert reached(killed) > 0.95


@pytest.mark.compiles
@pytest.mark.skipif(
    "locale" in entered, reason="DeepSpeed calls torch.compile: see test_warm_start.py"
)
def test_deepspeed(cluster: Cluster, tmp_path: Path, extensions: dict[str, str]) -> None:
    """After a kill during a save, ZeRO-3 resumes from the checkpoint in `latest`."""
    stop = "checkpoints/deepspeed_zero3/epoch-4/zero_pp_rank_0_mp_rank_00_model_states.pt"
    killed = require_same_result(cluster, tmp_path, "deepspeed_zero3", stop=stop, env=extensions)
    assert "resuming after epoch 3\n" in killed.output, str(killed)
    require_same_epoch(killed, epoch=4)
    assert reached(killed) > 0.95
    assert "attempting to detect MPI environment" not in killed.output, str(killed)
