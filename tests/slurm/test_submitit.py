"""submitit on a real cluster: its function starts hpclaunch in each task; it requeues the job."""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from .cluster import CONTROLLER, Cluster, Job, eventually
from .conftest import SCRIPTS

STEPS = 300
SUBMIT = """\
import sys
import submitit
import training

executor = submitit.SlurmExecutor("submitit")
executor.update_parameters(nodes=2, ntasks_per_node=1, time=30)
print(executor.submit(training.Training(sys.argv[1]), int(sys.argv[2])).job_id)
"""
# As in docs/python.md.
TRAINING = """\
import hpclaunch
import submitit

SAVED = 75

class Training:
    def __init__(self, script):
        self.script = script

    def __call__(self, steps):
        with hpclaunch.launch(
            self.script, "due", "--steps", steps, nproc=2, checkpoint_dir="checkpoints"
        ) as self.job:
            result = self.job.wait()
        if result.code not in (0, SAVED):
            raise RuntimeError(result.reason)
        return self.job.name

    def checkpoint(self, *args):
        self.job.wait()
        return submitit.helpers.DelayedSubmission(Training(self.script), *args)
"""
STEPPING = """\
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
steps, summed = int(sys.argv[-1]), torch.zeros(1)
for _ in range(steps):
    dist.all_reduce(summed)
with open(f"steps-{dist.get_rank()}.txt", "a") as f:
    f.write(f"0 {steps}\\n")
dist.destroy_process_group()
"""
RESULT = """\
import sys
import submitit

print(submitit.SlurmJob("submitit", sys.argv[1], tasks=[0, 1]).results())
"""


def python(cluster: Cluster, directory: Path, program: str, *args: object) -> str:
    """Run a program on the host where users submit jobs."""
    home = [f"{name}={value}" for name, value in cluster.environment(directory).items()]
    path = os.pathsep.join(filter(None, [str(directory), cluster.env.get("PYTHONPATH")]))
    there = ["env", f"--chdir={directory}", *home, f"PYTHONPATH={path}"]
    return cluster.on(CONTROLLER, [*there, sys.executable, "-c", program, *map(str, args)])


def submit(cluster: Cluster, directory: Path, script: Path, steps: int) -> Job:
    (directory / "training.py").write_text(TRAINING)
    text = python(cluster, directory, SUBMIT, script, steps)
    number = int(text.split()[-1])
    return Job(cluster, number, directory, directory / f"submitit/{number}_0_log.err")


def runs_of(directory: Path) -> list[list[int]]:
    """Return the first and the last step of each run, which must be the same for all ranks."""
    (text,) = {(directory / f"steps-{rank}.txt").read_text() for rank in range(4)}
    return [list(map(int, line.split())) for line in text.splitlines()]


@pytest.mark.usefixtures("light_torch")
def test_a_function_of_submitit(cluster: Cluster, tmp_path: Path) -> None:
    """The tasks of submitit's step are the agents of one job, and all return its result."""
    script = tmp_path / "stepping.py"
    script.write_text(STEPPING)
    job = submit(cluster, tmp_path, script, 30)
    ended = job.wait()
    assert (ended.state, ended.code) == ("COMPLETED", 0), str(ended)
    text = python(cluster, tmp_path, RESULT, job.id)
    assert text == f"['{job.id}.0', '{job.id}.0']\n"
    assert runs_of(tmp_path) == [[0, 30]]


@pytest.mark.requeues
def test_submitit_requeues_it(cluster: Cluster, tmp_path: Path) -> None:
    """submitit requeues the job before its time limit. No step is lost or repeated."""
    (tmp_path / "pause").write_text("0.05")
    job = submit(cluster, tmp_path, SCRIPTS / "continued.py", STEPS)
    names = [tmp_path / f"trains-{rank}" for rank in range(4)]
    eventually("the training", lambda: all(name.exists() for name in names))
    job.cancel("--signal=USR2")
    job.wait_for_requeue(1)
    (tmp_path / "pause").unlink()
    ended = job.wait(runs=3)
    assert (ended.state, ended.code) == ("COMPLETED", 0), str(ended)
    text = python(cluster, tmp_path, RESULT, job.id)
    assert text == f"['{job.id}.0.r1', '{job.id}.0.r1']\n"
    runs = runs_of(tmp_path)
    assert runs[0][0] == 0
    assert runs[-1][1] == STEPS
    assert len(runs) == 2
    for (_, last), (first, _) in pairwise(runs):
        assert first == last, (runs, str(ended))
    assert json.loads((tmp_path / "final.json").read_text())
