"""The job scripts that users start from, unchanged, with a worker killed half-way.

NVML and Slurm report GPUs that do not exist, so all scripts use CPUs and gloo.
"""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nvml
import pytest
from nvml import Driver, Gpu

import surroundings
import timed

from .cluster import Cluster
from .conftest import AGENT
from .job_scripts import (
    Stop,
    kill,
    reached,
    require_same_epoch,
    rounds,
    run,
    run_with_a_kill,
    submit,
    workers,
)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn"
)
COMPILERS = ("cmake", "make", "g++")
missing = [tool for tool in COMPILERS if shutil.which(tool) is None]


@dataclass(frozen=True, slots=True)
class Script:
    """A job script, and how to test it."""

    name: str
    gpus: int  # per node; fewer than in the script, since the nodes share a few cores
    nodes: int = 2
    victim: int = 1  # the rank to kill
    text: str = ""  # expected on the console


DDP = Script("ddp", gpus=1)
SCRIPTS = (
    DDP,
    Script("single", gpus=1, nodes=1, victim=0, text="training on CPU, threads: 1\n"),
    Script("data_parallel", gpus=2, nodes=1, victim=0, text="one process, GPUs: 0;"),
    Script("model_data_parallel", gpus=2),
    Script("rpc", gpus=1),
)


def on_gpus(number: int, directory: Path) -> dict[str, Any]:
    """Return arguments of `submit` for nodes with so many GPUs."""
    library = nvml.library()
    library.chmod(0o755)
    state = Driver(directory, [Gpu()] * number).state
    env = {"LD_LIBRARY_PATH": str(library), "HPCLAUNCH_STAND_IN_NVML": str(state)}
    return {"options": [f"--gpus-per-node={number}"], "env": env}


@pytest.mark.recipes
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_killed_worker_changes_nothing(script: Script, cluster: Cluster, tmp_path: Path) -> None:
    """A worker is killed while epoch 4 is saved; that epoch is repeated from checkpoint 3."""
    killed = run_with_a_kill(
        cluster,
        tmp_path,
        script.name,
        stop=f"checkpoints/{script.name}/epoch-4.tmp",
        rank=script.victim,
        nodes=script.nodes,
        **on_gpus(script.gpus, tmp_path),
    )
    assert rounds(tmp_path) == 2
    assert script.text in killed.output, str(killed)
    assert killed.output.count("resuming after epoch 3\n") == 1, str(killed)
    require_same_epoch(killed, epoch=4)
    assert reached(killed) > 0.95
    if script is DDP:
        for left in ("checkpoints", "hpclaunch-logs"):
            shutil.rmtree(tmp_path / left)
        undisturbed = run(cluster, tmp_path, script.name, **on_gpus(script.gpus, tmp_path))
        assert reached(killed) == reached(undisturbed)


def test_eight_replicas_continue_after_a_kill(cluster: Cluster, tmp_path: Path) -> None:
    stop = "checkpoints/mps_replicas/epoch-5.tmp"
    ended = run_with_a_kill(cluster, tmp_path, "mps_replicas", stop=stop, nodes=1)
    assert rounds(tmp_path) == 2
    assert reached(ended) > 0.95
    assert reached(ended, "images/s") > 0


@pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")
@pytest.mark.compiles
def test_a_program_in_cpp_continues_after_a_kill(cluster: Cluster, tmp_path: Path) -> None:
    stop = "checkpoints/libtorch/epoch-4.tmp"
    killed = run_with_a_kill(cluster, tmp_path, "libtorch", stop=stop)
    assert rounds(tmp_path) == 2
    assert killed.output.count("resuming after epoch 3\n") == 1, str(killed)
    for left in ("checkpoints", "hpclaunch-logs"):
        shutil.rmtree(tmp_path / left)
    undisturbed = run(cluster, tmp_path, "libtorch")  # already compiled
    assert reached(killed) == reached(undisturbed) > 0.95


def test_elastic_reaches_the_result_of_one_worker(cluster: Cluster, tmp_path: Path) -> None:
    """A launcher is killed and replaced by a spare, which is then cut off and returns."""
    one_each = on_gpus(1, tmp_path)
    one_each["env"]["PYTHONPATH"] = surroundings.LIGHT_SKLEARN
    # A busy machine delays no agent for this long.
    one_each["env"] |= timed.variables(cluster.env["PATH"], loss=6.0)
    alone = run(cluster, tmp_path / "a", "elastic", nodes=1, **one_each)
    checkpoints = tmp_path / "b" / "checkpoints" / "elastic"
    first, second, third = (Stop(checkpoints / f"step-{step}.tmp") for step in (60, 100, 140))
    with first, second, third:
        job = submit(cluster, tmp_path / "b", "elastic", nodes=3, **one_each)
        first.wait_until_reached()
        agent = cluster.process(AGENT, host=workers(job, 1)[0].host)
        agent.kill()
        second.wait_until_reached()
        spare = workers(job, 1)[0].host
        with cluster.nodes[spare].without_network():
            third.wait_until_reached()
        job.says(f"{spare} is back")
        kill(job, 0)  # both nodes take part in the next round
    ended = job.wait()  # with the code of the launcher that was killed
    found = [line for line in ended.output.splitlines() if line.startswith("resuming in")]
    assert found == [
        "resuming in epoch 2 after 4 batches, ranks: 2",
        "resuming in epoch 3 after 21 batches, ranks: 1",
        "resuming in epoch 5 after 15 batches, ranks: 2",
    ], str(ended)
    assert reached(ended) == pytest.approx(reached(alone), abs=0.01)  # sums are rounded differently
