"""A user's mistake leads to one clear line, and exit code 2 of every agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cluster import Cluster, Job
from .conftest import SCRIPTS, Launch

SIMPLE = SCRIPTS / "simple.py"


def test_a_script_that_does_not_exist(launch: Launch, tmp_path: Path) -> None:
    job = launch("--nproc", 1, "trian.py", nodes=2)
    ended = job.wait()
    assert ended.code == 2, str(ended)
    assert job.codes == {0: 2, 1: 2}
    ours = [line for line in ended.output.splitlines() if line.startswith("hpclaunch:")]
    assert len(ours) == 1
    assert ours[0].endswith(f"no script trian.py in {tmp_path}")


def test_a_script_that_is_missing_on_one_node(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    directory = tmp_path / "scripts"
    directory.mkdir()
    script = directory / "simple.py"
    script.write_text(SIMPLE.read_text())
    cluster.on("n2", ["mount", "-t", "tmpfs", "tmpfs", str(directory)])
    try:
        job = launch("--nproc", 1, script, nodes=2)
        ended = job.wait()
    finally:
        cluster.on("n2", ["umount", str(directory)])
    assert ended.code == 2, str(ended)
    assert job.codes == {0: 2, 1: 2}
    assert job.environments() == {}
    ours = [line for line in ended.output.splitlines() if line.startswith("hpclaunch:")]
    assert ours == [f"hpclaunch: error: on n2: no script {script} in {tmp_path}"]


WRONG = "hpclaunch: error: argument --nproc/--nproc-per-node: 'all'"


def test_an_option_that_is_wrong(launch: Launch) -> None:
    """The first and the last task print the error, since the first could be another program."""
    job = launch("--nproc", "all", SIMPLE)
    ended = job.wait()
    assert ended.code == 2, str(ended)
    assert job.codes == {0: 2, 1: 2, 2: 2}
    assert ended.output.count(WRONG) == 2


@pytest.mark.parametrize(
    "srun",
    [
        """bash -c 'test $SLURM_PROCID = 0 || hpclaunch "$@"' -""",
        "--multi-prog programs",
    ],
)
def test_an_option_that_is_wrong_where_the_first_task_is_another_program(
    launch: Launch, tmp_path: Path, srun: str
) -> None:
    (tmp_path / "programs").write_text("0 true\n1-2 hpclaunch --nproc all x.py\n")
    ended = launch("--nproc", "all", SIMPLE, srun=f"srun {srun}").wait()
    assert ended.code == 2, str(ended)
    assert ended.output.count(WRONG) == 1


def test_an_option_without_another_that_it_needs(launch: Launch) -> None:
    ended = launch("--grow", "checkpoint", SIMPLE).wait()
    assert ended.code == 2, str(ended)
    text = "hpclaunch: error: --grow checkpoint needs --checkpoint-dir, to know where the script "
    assert ended.output.count(text) == 2


@pytest.mark.usefixtures("light_torch")
def test_tasks_without_slurms_variables(launch: Launch) -> None:
    """Each task trains on its own, as in a container with --cleanenv."""
    srun = 'srun env --ignore-environment "PATH=$PATH" "PYTHONPATH=$PYTHONPATH" hpclaunch'
    args = ["--nproc", 1, "--no-python", "sh", "-c", "echo rank $RANK of $WORLD_SIZE"]
    job = launch(*args, srun=srun, nodes=2, usual=True)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert ended.output.count("rank 0 of 1\n") == 2
    for host in ("n1", "n2"):
        text = f"hpclaunch: the task of step {job.id}.0 on {host} has none of Slurm's variables"
        assert text in ended.output
    ended = launch("--standalone", *args, srun=srun, nodes=2, usual=True).wait()
    assert "hpclaunch:" not in ended.output


def test_a_job_script_that_was_submitted_from_within_a_step(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """The job script inherits the variables of the step, but is not one of its tasks."""
    inner = tmp_path / "inner.sh"
    inner.write_text(f"#!/bin/bash\n#SBATCH -N1 -n1 -o inner.out\nhpclaunch --nproc 2 {SIMPLE}\n")
    job = launch(srun=f"srun bash -c 'test $SLURM_PROCID != 1 || sbatch {inner.name}'", nodes=3)
    assert job.wait().code == 0
    ended = Job(cluster, job.id + 1, tmp_path, tmp_path / "inner.out").wait()
    assert ended.code == 0, str(ended)
    envs = job.environments()
    assert [env["WORLD_SIZE"] for env in envs.values()] == ["2", "2"]
    assert envs[0]["TORCHELASTIC_RUN_ID"] == f"{job.id + 1}.batch"
    assert "SLURM_STEP_ID" not in envs[0]


def test_variables_of_another_job(launch: Launch) -> None:
    """Such variables may remain in a container."""
    job = launch("--nproc", 1, SIMPLE, srun="srun env SLURM_JOB_ID=7 hpclaunch", nodes=1)
    ended = job.wait()
    assert ended.code == 2, str(ended)
    text = f"hpclaunch: error: SLURM_JOB_ID is 7, but this process belongs to step {job.id}.0: "
    assert text in ended.output


def test_a_shell_with_the_variables_of_an_ended_job(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.sbatch("true", directory=tmp_path, nodes=2)
    job.wait()
    stale = {
        "SLURM_JOB_ID": str(job.id),
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "n[1-2]",
    }
    shell = [f"{name}={value}" for name, value in stale.items()]
    words = ["env", "-C", str(tmp_path), *shell, "bash", "-c", f"hpclaunch {SIMPLE} 2>&1; echo $?"]
    text = cluster.on("ctl", words)
    assert text == (
        f"hpclaunch: error: SLURM_JOB_ID is {job.id}, but that job is over: unset SLURM_JOB_ID to "
        "use this machine without Slurm\n2\n"
    )


def test_a_heterogeneous_job_without_srun(cluster: Cluster, tmp_path: Path) -> None:
    options = [":", "--nodes=1", "--ntasks-per-node=1"]
    job = cluster.sbatch(f"hpclaunch {SIMPLE}", directory=tmp_path, nodes=1, options=options)
    ended = job.wait()
    assert ended.code == 2, str(ended)
    assert ended.output == (
        f"hpclaunch: error: job {job.id} has 2 components, but hpclaunch was started on one of "
        "them only: prefix with srun --het-group=0-1 (or, to train on this node alone, "
        "use hpclaunch --standalone)\n"
    )
    assert job.environments() == {}


def test_without_srun_on_several_nodes(launch: Launch) -> None:
    job = launch("--nproc", 1, SIMPLE, srun="hpclaunch", nodes=2)
    ended = job.wait()
    assert ended.code == 2, str(ended)
    assert ended.output == (
        f"hpclaunch: error: job {job.id} has 2 nodes, but hpclaunch was started on one of them "
        "only: prefix with srun (or, to train on this node alone, use hpclaunch --standalone)\n"
    )
    assert job.environments() == {}


def test_srun_is_not_needed_on_one_node(launch: Launch) -> None:
    job = launch("--nproc", 2, SIMPLE, srun="hpclaunch", nodes=1)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert {env["TORCHELASTIC_RUN_ID"] for env in job.environments().values()} == {
        f"{job.id}.batch"
    }
