"""The job scripts for the Hugging Face Trainer, Accelerate, Lightning and DeepSpeed, as they are:
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

from .cluster import Cluster, Ended
from .job_scripts import came_out_alike, reached, rounds, run, run_with_a_kill

PACKAGES = ("pytorch_lightning", "accelerate", "deepspeed", "sklearn", "transformers")
missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}"),
    pytest.mark.timeout(400),
    pytest.mark.frameworks,
]
ONE_EACH = ["--cpus-per-task=1"]  # and so one worker on each node, where there is no GPU


def changes_nothing(
    cluster: Cluster, directory: Path, name: str, what: str = "accuracy", **more: Any
) -> Ended:
    """That a worker is killed; `what` is what the script reaches, and returned is the job with the
    kill. The other arguments: see `run_with_a_kill`."""
    where = {key: more.pop(key) for key in ("after", "stop") if key in more}
    more.setdefault("options", ONE_EACH)
    undisturbed = run(cluster, directory / "a", name, **more)
    killed = run_with_a_kill(cluster, directory / "b", name, **where, **more)
    assert rounds(directory / "b") == 2
    assert reached(killed, what) == reached(undisturbed, what), f"{undisturbed}\n{killed}"
    return killed


def test_hf_trainer(cluster: Cluster, tmp_path: Path) -> None:
    """Killed in the midst of an epoch, before it wrote the last file of a save: all others are
    there, and the Trainer itself would take it."""
    stop = "checkpoints/hf_trainer/checkpoint-30/rng_state_1.pth"
    killed = changes_nothing(cluster, tmp_path, "hf_trainer", "loss", stop=stop)
    lacks = r"rng_state_1.pth is missing: rank 1 of \d had not saved yet\n"
    assert re.search(f"passing over checkpoint checkpoint-30: {lacks}", killed.output), str(killed)
    assert "resuming from checkpoint-20\n" in killed.output, str(killed)
    told = re.findall(r"^{'loss': .*'epoch': '0.9375'}$", killed.output, re.MULTILINE)
    assert len(told) > 2, "by each node, and again after the kill"
    assert len(set(told)) == 1, str(killed)
    assert reached(killed, "loss") < 2.3


def test_accelerate(cluster: Cluster, tmp_path: Path) -> None:
    """A plain `save_state`, which lacks the part of a rank that was killed."""
    stop = "checkpoints/accelerate_ddp/epoch-4/random_states_1.pkl"
    killed = changes_nothing(cluster, tmp_path, "accelerate_ddp", stop=stop)
    lacks = r"random_states_1.pkl is missing: rank 1 of \d had not saved yet\n"
    assert re.search(f"passing over checkpoint epoch-4: {lacks}", killed.output), str(killed)
    assert "resuming after epoch 3\n" in killed.output, str(killed)
    came_out_alike(killed, epoch=4)
    assert reached(killed) > 0.95


def test_lightning(cluster: Cluster, tmp_path: Path) -> None:
    """With its own checkpoints, and imported once on each node."""
    after = "checkpoints/lightning_ddp/epoch=1.ckpt"
    killed = changes_nothing(cluster, tmp_path, "lightning_ddp", after=after)
    assert "resuming from epoch=" in killed.output, str(killed)
    assert reached(killed) > 0.95


@pytest.mark.compiles
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    "locale" in entered, reason="DeepSpeed calls torch.compile: see test_warm_start.py"
)
def test_deepspeed(cluster: Cluster, tmp_path: Path, extensions: dict[str, str]) -> None:
    """ZeRO-3: killed while it saves, it goes on from what `latest` names."""
    stop = "checkpoints/deepspeed_zero3/epoch-4/zero_pp_rank_0_mp_rank_00_model_states.pt"
    killed = changes_nothing(cluster, tmp_path, "deepspeed_zero3", stop=stop, env=extensions)
    assert "resuming after epoch 3\n" in killed.output, str(killed)
    came_out_alike(killed, epoch=4)
    assert reached(killed) > 0.95
    assert "attempting to detect MPI environment" not in killed.output, str(killed)
