"""A user's mistake: one clear line, and 2 from every agent."""

from __future__ import annotations

from pathlib import Path

from .cluster import Cluster
from .conftest import SCRIPTS, Launch

TELL = SCRIPTS / "tell.py"


def test_a_script_that_is_not_there(launch: Launch, tmp_path: Path) -> None:
    job = launch("--nproc", 1, "trian.py")
    ended = job.wait()
    assert ended.code == 2, str(ended)
    assert job.codes == {0: 2, 1: 2, 2: 2}
    ours = [line for line in ended.output.splitlines() if line.startswith("hpclaunch:")]
    assert len(ours) == 1
    assert ours[0].endswith(f"no script trian.py in {tmp_path}")


def test_a_script_that_is_missing_on_one_node(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    directory = tmp_path / "scripts"
    directory.mkdir()
    script = directory / "tell.py"
    script.write_text(TELL.read_text())
    cluster.on("n2", ["mount", "-t", "tmpfs", "tmpfs", str(directory)])
    try:
        job = launch("--nproc", 1, script)
        ended = job.wait()
    finally:
        cluster.on("n2", ["umount", str(directory)])
    assert ended.code == 2, str(ended)
    assert job.codes == {0: 2, 1: 2, 2: 2}
    assert job.told() == {}
    ours = [line for line in ended.output.splitlines() if line.startswith("hpclaunch:")]
    assert ours == [f"hpclaunch: error: on n2: no script {script} in {tmp_path}"]


def test_an_option_that_is_wrong(launch: Launch) -> None:
    ended = launch("--nproc", "all", TELL, srun="srun hpclaunch").wait()
    assert ended.code == 2, str(ended)
    ours = [line for line in ended.output.splitlines() if line.startswith("hpclaunch:")]
    assert len(ours) == 1
    assert ours[0].startswith("hpclaunch: error: argument --nproc/--nproc-per-node: 'all'")


def test_an_option_that_is_wrong_in_a_script_that_each_task_runs(launch: Launch) -> None:
    """The tasks could be different programs, so the last one says it as well."""
    job = launch("--nproc", "all", TELL)
    ended = job.wait()
    assert job.codes == {0: 2, 1: 2, 2: 2}
    assert ended.output.count("hpclaunch: error: argument --nproc/--nproc-per-node: 'all'") == 2


def test_an_option_that_is_wrong_where_the_first_task_is_another_program(launch: Launch) -> None:
    srun = """srun bash -c 'if [ $SLURM_PROCID = 0 ]; then true; else hpclaunch "$@"; fi' -"""
    job = launch("--nproc", "all", TELL, srun=srun)
    ended = job.wait()
    assert ended.code == 2, str(ended)
    ours = [line for line in ended.output.splitlines() if line.startswith("hpclaunch:")]
    assert len(ours) == 1
    assert ours[0].startswith("hpclaunch: error: argument --nproc/--nproc-per-node: 'all'")


def test_an_option_without_another_that_it_needs(launch: Launch) -> None:
    ended = launch("--grow", "checkpoint", TELL, srun="srun hpclaunch").wait()
    assert ended.code == 2, str(ended)
    ours = [line for line in ended.output.splitlines() if line.startswith("hpclaunch:")]
    said = "--grow checkpoint needs --checkpoint-dir, to know where the script saves"
    assert ours == [f"hpclaunch: error: {said}"]


def test_without_srun_on_several_nodes(launch: Launch) -> None:
    job = launch("--nproc", 1, TELL, srun="hpclaunch", nodes=2)
    ended = job.wait()
    assert ended.code == 2, str(ended)
    assert ended.output == (
        f"hpclaunch: error: job {job.id} has 2 nodes, but hpclaunch was started on one of them "
        "only: prefix with srun (or, to use this node alone, add --standalone)\n"
    )
    assert job.told() == {}


def test_without_srun_on_one_node_it_just_works(launch: Launch) -> None:
    job = launch("--nproc", 2, TELL, srun="hpclaunch", nodes=1)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert {env["TORCHELASTIC_RUN_ID"] for env in job.told().values()} == {f"{job.id}.batch"}
