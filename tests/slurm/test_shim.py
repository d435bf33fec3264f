"""Job scripts that call torchrun, unchanged except for the line with `hpclaunch shim`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .cluster import Cluster, Job
from .conftest import SCRIPTS

SIMPLE = SCRIPTS / "simple.py"
SHIM = """\
export PATH="$(hpclaunch shim):$PATH" PYTHONPATH="$(hpclaunch shim)${PYTHONPATH:+:$PYTHONPATH}"
"""


def submit(cluster: Cluster, directory: Path, command: str, nodes: int = 2) -> Job:
    return cluster.sbatch(SHIM + command, directory=directory, nodes=nodes)


def test_srun_torchrun(cluster: Cluster, tmp_path: Path) -> None:
    """The failure of one worker restarts all workers, as with torchrun."""
    options = "--nnodes=$SLURM_NNODES --nproc-per-node=2 --rdzv-id=$SLURM_JOB_ID"
    meet = "--rdzv-backend=c10d --rdzv-endpoint=$(hostname):29400"
    fail = "--fail '3:now?:kill' --until end"
    job = submit(cluster, tmp_path, f"srun torchrun {options} {meet} {SIMPLE} {fail}")
    job.wait_for_workers(4)
    job.forget()
    (tmp_path / "now").touch()
    job.says("rank 3 on n2 was killed by SIGKILL; restart 1 of 3")
    job.wait_for_workers(4)
    envs = job.environments()
    (tmp_path / "now").unlink()
    job.cancel("--signal=TERM")
    ended = job.wait()
    assert ended.code == 1, str(ended)  # torchrun always ends with 1
    assert [env["hostname"] for env in envs.values()] == ["n1", "n1", "n2", "n2"]
    assert {env["TORCHELASTIC_RESTART_COUNT"] for env in envs.values()} == {"1"}
    assert {env["TORCHELASTIC_RUN_ID"] for env in envs.values()} == {str(job.id)}


@pytest.mark.parametrize("launcher", ["torchrun", "python -m torch.distributed.run"])
def test_a_caller_with_slurms_variables(cluster: Cluster, tmp_path: Path, launcher: str) -> None:
    """Each task of a step calls the launcher with Slurm's variables, as LLaMA-Factory does."""
    (tmp_path / "tool").write_text(
        f"{launcher} --nnodes $NNODES --node_rank $NODE_RANK --nproc_per_node 2 "
        f"--master_addr $MASTER_ADDR --master_port 29511 {SIMPLE} || exit 1$?\n"
    )
    variables = "export NNODES=$SLURM_NNODES MASTER_ADDR=$(hostname)"
    in_task = "NODE_RANK=$SLURM_NODEID sh tool"
    job = submit(cluster, tmp_path, f"{variables}\nsrun bash -c '{in_task}'")
    ended = job.wait()
    assert ended.code == 0, str(ended)
    envs = job.environments()
    assert [env["GROUP_RANK"] for env in envs.values()] == ["0", "0", "1", "1"]
    assert all("HPCLAUNCH_STORE" in env for env in envs.values())
    assert "hpclaunch:" not in ended.output  # nothing that contradicts Slurm


def test_a_batch_script_without_srun(cluster: Cluster, tmp_path: Path) -> None:
    words = "--nnodes 1 --node_rank 0 --nproc_per_node 2 --master_addr 127.0.0.1 --master_port 1"
    job = submit(cluster, tmp_path, f"torchrun {words} {SIMPLE}", nodes=1)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert {env["WORLD_SIZE"] for env in job.environments().values()} == {"2"}


def test_srun_of_torchrun_without_no_kill(cluster: Cluster, tmp_path: Path) -> None:
    """The warning is printed, since the command line of srun is examined."""
    job = submit(cluster, tmp_path, f"srun torchrun --nnodes=1:2 {SIMPLE}")
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert "a node that Slurm finds down ends this step: add --no-kill to srun" in ended.output


WITHIN = """
import json, os, subprocess, sys
name = "-".join([sys.argv[1], os.environ["SLURMD_NODENAME"], os.environ["RANK"]])
with open(f"within-{name}.json", "w") as f:
    json.dump({**os.environ}, f)
if sys.argv[1] == "outer":
    for words in (["torchrun"], ["hpclaunch", "--nnodes=1"], ["hpclaunch"]):
        subprocess.run([*words, "--nproc-per-node=2", __file__, words[-1]], check=True)
"""


def test_a_launcher_within_a_worker(cluster: Cluster, tmp_path: Path) -> None:
    """The step's tasks belong to the outer launcher: an inner one uses this worker's place only."""
    script = tmp_path / "within.py"
    script.write_text(WITHIN)
    job = submit(cluster, tmp_path, f"srun torchrun {script.name} outer")
    ended = job.wait()
    assert ended.code == 0, str(ended)
    found = {
        path.stem.removeprefix("within-"): json.loads(path.read_text())
        for path in tmp_path.glob("within-*.json")
    }
    inner = [
        f"{name}-n{n}-{r}" for n in (1, 2) for r in (0, 1) for name in ("torchrun", "hpclaunch")
    ]
    inner += [f"--nnodes=1-n{n}-{r}" for n in (1, 2) for r in (0, 1)]
    assert sorted(found) == sorted(["outer-n1-0", "outer-n2-1", *inner])
    assert {found[name]["WORLD_SIZE"] for name in inner} == {"2"}
    stores = {found[name]["HPCLAUNCH_STORE"] for name in inner}
    assert len(stores) == 6
    assert not stores & {found[name]["HPCLAUNCH_STORE"] for name in ("outer-n1-0", "outer-n2-1")}


@pytest.mark.usefixtures("light_torch")
def test_a_job_that_a_worker_submits(cluster: Cluster, tmp_path: Path) -> None:
    """The job inherits the worker's environment, but is a job of its own."""
    script = tmp_path / "next.sh"
    script.write_text(f"#!/bin/bash\nsrun torchrun {SIMPLE}\n")
    sbatch = f"sbatch --wait --no-requeue --nodes=2 --ntasks-per-node=1 {script.name}"
    job = submit(cluster, tmp_path, f"srun torchrun --no-python {sbatch}", nodes=1)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert {env["WORLD_SIZE"] for env in job.environments().values()} == {"2"}
    assert [env["hostname"] for env in job.environments().values()] != ["n1", "n1"]
