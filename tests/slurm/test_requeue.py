"""Jobs that continue in another run: no step is lost or repeated."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from .cluster import CONTROLLER, Cluster, Job, JobResult, eventually
from .conftest import SCRIPTS, Launch, with_spare

pytestmark = pytest.mark.requeues
CONTINUED = SCRIPTS / "continued.py"
SRUN = "srun hpclaunch"
SETTINGS = ("--nproc", 2, "--checkpoint-dir", "checkpoints", "--grace", 5, "--notice", 10)
RANKS = range(4)
STEPS = 900
MOST_RUNS = 4  # on a busy machine
ROUNDS = "hpclaunch-logs/*/round-*"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return the digest of the weights after these steps in one run."""
    directory = tmp_path_factory.mktemp("undisturbed")
    command = [
        sys.executable,
        "-m",
        "hpclaunch",
        "--nproc",
        "4",
        CONTINUED,
        "due",
        "--steps",
        STEPS,
    ]
    subprocess.run(list(map(str, command)), cwd=directory, check=True)
    return dict(json.loads((directory / "final.json").read_text()))


def begin(
    launch: Launch,
    directory: Path,
    how: str,
    *options: object,
    slurm: str = "",
    srun: str = SRUN,
    after: str = "",
    nodes: int = 2,
) -> Job:
    directory.mkdir(exist_ok=True)
    (directory / "pause").write_text("0.05")
    sbatch_options = ["--requeue", *slurm.split()]
    args = (*SETTINGS, *options, CONTINUED, how, "--steps", STEPS)
    return launch(
        *args, nodes=nodes, srun=srun, after=after, options=sbatch_options, directory=directory
    )


def until_it_trains(job: Job) -> None:
    names = [job.directory / f"trains-{rank}" for rank in RANKS]
    eventually("the training", lambda: all(name.exists() for name in names))


def runs_of(job: Job) -> list[list[int]]:
    """Return the first and the last step of each run, which must be the same for all ranks."""
    texts = {(job.directory / f"steps-{rank}.txt").read_text() for rank in RANKS}
    (text,) = texts
    return [list(map(int, line.split())) for line in text.splitlines()]


def speed_up(job: Job) -> None:
    (job.directory / "pause").unlink()


def finished(job: Job, undisturbed: dict[str, object], *, twice: int = 0) -> JobResult:
    """Wait for the end; require that no step is left out, and at most so many are done `twice`."""
    ended = job.wait(runs=MOST_RUNS)
    assert (ended.state, ended.code) == ("COMPLETED", 0), str(ended)
    assert json.loads((job.directory / "final.json").read_text()) == undisturbed
    runs = runs_of(job)
    assert runs[0][0] == 0
    assert runs[-1][1] == STEPS
    for (_, last), (first, _) in pairwise(runs):
        assert 0 <= last - first <= twice, runs
    return ended


def test_a_time_limit_is_survived(
    launch: Launch, tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    """With a signal handler, with `due`, without scontrol; but a job without progress ends."""
    jobs = {
        how: begin(launch, tmp_path / how, how, "--requeue", slurm="--time=1")
        for how in ("due", "signal")
    }
    alone = begin_without_scontrol(launch, tmp_path / "alone")
    early = ("--grace", 20)  # so that it ends before its limit, even on a busy machine
    idle = begin(launch, tmp_path / "idle", "idle", "--requeue", *early, slurm="--time=1")
    for job in (*jobs.values(), alone):
        job.wait_for_requeue(1)
        speed_up(job)
    idle.wait_for_requeue(1)
    ended = idle.wait()
    assert ended.state == "FAILED", str(ended)
    assert "it is not started again: this run saved no checkpoint" in ended.output
    assert idle.fields()["Restarts"] == "1"

    for job in jobs.values():
        ended = finished(job, undisturbed)
        assert "saved, not finished: " in ended.output
        assert f"job {job.id} is requeued: run 2 follows" in ended.output
        rounds = {path.name: path.parent.name for path in job.directory.glob(ROUNDS)}
        assert rounds["round-0"] == f"{job.id}.0"
        assert rounds["round-1"] == f"{job.id}.0.r1"

    ended = finished(alone, undisturbed)
    assert "is to be requeued by its script: there is no scontrol here" in ended.output


def test_a_signal_of_slurms_own_is_survived(
    launch: Launch, tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    """Slurm sends it to the agents and the workers, as with `#SBATCH --signal`.

    SIGTERM then means that the time limit is near, not that the job is cancelled.
    """
    jobs = {
        name: begin(launch, tmp_path / name, "agreed", "--requeue", slurm="--time=10")
        for name in ("SIGUSR1", "SIGTERM")
    }
    for name, job in jobs.items():
        until_it_trains(job)
        job.cancel(f"--signal={name}")
    for job in jobs.values():
        job.wait_for_requeue(1)
        speed_up(job)
    for job in jobs.values():
        ended = finished(job, undisturbed)
        assert "saved, not finished: the workers left after" in ended.output


def test_a_cancelled_job_is_not_requeued(launch: Launch, tmp_path: Path) -> None:
    """This also holds if SIGTERM has announced the time limit before."""
    job = begin(launch, tmp_path, "due", "--requeue", slurm="--time=10")
    until_it_trains(job)
    job.cancel("--signal=SIGTERM")
    job.says("the job is near its time limit: it ends in")
    job.cancel()
    ended = job.wait()
    assert ended.state == "CANCELLED", str(ended)
    assert job.fields()["Restarts"] == "0"
    assert "ended by SIGTERM on n" in ended.output


def begin_without_scontrol(launch: Launch, directory: Path) -> Job:
    """Start a job as in many containers; its end is in SLURM_JOB_END_TIME, as in newer Slurms."""
    end = "SLURM_JOB_END_TIME=$(($(date +%s) + 60))"
    srun = f"{end} srun env PATH={Path(sys.executable).parent} hpclaunch"
    after = "code=$?; [ $code = 75 ] && scontrol requeue $SLURM_JOB_ID; exit $code"
    return begin(launch, directory, "due", "--requeue", slurm="--time=1", srun=srun, after=after)


def test_preempted_jobs_continue(
    cluster: Cluster, launch: Launch, tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    """Slurm itself requeues a job only if it still runs at the end of its grace time."""
    asking = begin(launch, tmp_path / "asking", "due", "--requeue")
    waiting = begin(launch, tmp_path / "waiting", "due")
    jobs = (asking, waiting)
    for job in jobs:
        until_it_trains(job)
    urgent = cluster.sbatch(
        "true", directory=tmp_path, nodes=4, options=["--partition=urgent", "--exclusive"]
    )
    for job in jobs:
        job.wait_for_requeue(1)
    assert urgent.wait().code == 0
    for job in jobs:
        speed_up(job)
    for job in jobs:
        ended = finished(job, undisturbed)
        assert "saved, not finished: " in ended.output
        waited = f"job {job.id} waits for its preemption, to be started again by Slurm"
        assert (waited in ended.output) == (job is waiting)


def test_a_job_that_an_administrator_requeues_continues(
    cluster: Cluster, launch: Launch, tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    """Here the job was submitted from within a requeued one, whose variable it has inherited."""
    srun = f"SLURM_RESTART_COUNT=${{SLURM_RESTART_COUNT:-1}} {SRUN}"
    job = begin(launch, tmp_path, "due", srun=srun)
    until_it_trains(job)
    cluster.on(CONTROLLER, ["scontrol", "requeue", str(job.id)])
    job.wait_for_requeue(1)
    speed_up(job)
    ended = finished(job, undisturbed)
    assert "the job is requeued: it ends in 20 s" in ended.output
    assert "saved, not finished: " in ended.output


def test_a_chain_ends_with_the_training(
    cluster: Cluster, launch: Launch, tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    job = begin(launch, tmp_path, "due", "--chain", slurm="--time=1 --array=1-9%1")
    eventually("the first end", lambda: (tmp_path / "steps-0.txt").exists())
    speed_up(job)
    left = ["squeue", "-h", "-j", str(job.id)]
    eventually("the end", lambda: not cluster.on(CONTROLLER, left))
    assert json.loads((tmp_path / "final.json").read_text()) == undisturbed
    runs = runs_of(job)
    assert 2 <= len(runs) < 9
    assert [last for _, last in runs[:-1]] == [first for first, _ in runs[1:]]


def test_a_spare_takes_the_place_of_a_drained_node(
    cluster: Cluster, launch: Launch, tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    """The workers may leave after their save, or continue."""
    jobs = {
        how: begin(launch, tmp_path / how, how, "--nnodes", 2, nodes=3, srun=with_spare(2))
        for how in ("due", "unaware")
    }
    for job in jobs.values():
        # The agent asks Slurm about its nodes once a minute; the training must last until then.
        (job.directory / "pause").write_text("0.2")
        until_it_trains(job)
    drained = "n2"
    for job in jobs.values():
        nodes = job.fields()["NodeList"]
        assert drained in cluster.on(CONTROLLER, ["scontrol", "show", "hostnames", nodes]).split()
    update = ["scontrol", "update", f"NodeName={drained}"]
    cluster.on(CONTROLLER, [*update, "State=DRAIN", "Reason=a test"])
    try:
        for job in jobs.values():
            job.says(f"a spare takes the place of {drained}, which Slurm drains")
    finally:
        cluster.on(CONTROLLER, [*update, "State=RESUME"])
    for how, job in jobs.items():
        speed_up(job)
        ended = job.wait()
        assert ended.code == 0, str(ended)
        assert json.loads((job.directory / "final.json").read_text()) == undisturbed
        assert f"Slurm drains {drained}: the workers are given notice" in ended.output
        lost = [last - first for (_, last), (first, _) in pairwise(runs_of(job))]
        assert lost == [0] if how == "due" else all(0 <= steps < 50 for steps in lost)
