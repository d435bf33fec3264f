"""The end of a job on a real cluster: all ranks receive notice before the same step.

The job whose signal handler saves before a time limit trains a model; in the others, a number takes
its place.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from .cluster import CONTROLLER, Cluster, Job, eventually
from .conftest import AGENT, LIGHT_TORCH, SCRIPTS, Launch

ENDING = SCRIPTS / "ending.py"
lightly = pytest.mark.usefixtures("light_torch")
SRUN = "srun hpclaunch"  # a shell in between would die of the signals
SETTINGS = ("--nproc", 2, "--checkpoint-dir", "checkpoints", "--grace", 5, "--notice", 10)
AMPLE = ("--notice", 25)  # enough to save and exit, even on a busy machine
RANKS = 4
SAVED = 75


def common_save(directory: Path) -> dict[str, object]:
    """Return what all ranks have saved; require that it is the same."""
    saved = [json.loads((directory / f"saved-{rank}.json").read_text()) for rank in range(RANKS)]
    assert all(each == saved[0] for each in saved), saved
    assert saved[0]["drawn"] - saved[0]["step"] in (0, 1)  # within a step, or after one
    return dict(saved[0])


def until_it_trains(job: Job) -> None:
    names = [job.directory / f"trains-{rank}" for rank in range(RANKS)]
    eventually("the training", lambda: all(name.exists() for name in names))


def limited(launch: Launch, directory: Path, how: str, *light: str, **more: object) -> Job:
    """Submit a job with a time limit, which `limit` shortens once it trains."""
    directory.mkdir()
    settings, options = (*SETTINGS, *AMPLE), ["--time=5"]
    timing = {"ask_end": 1.0, "ask_again": 1.0}
    return launch(
        *settings,
        ENDING,
        how,
        *light,
        nodes=2,
        srun=SRUN,
        options=options,
        directory=directory,
        timing=timing,
        **more,
    )


def limit(job: Job, seconds: int) -> None:
    """Set the end of the job to so many seconds from now, fewer than a user can request."""
    until_it_trains(job)
    update = ["scontrol", "update", f"JobId={job.id}", f"EndTime=now+{seconds}"]
    job.cluster.on(CONTROLLER, update)


def require_common_save_at_end(job: Job, how: str) -> None:
    ended = job.wait()
    saved = common_save(job.directory)
    assert (ended.state, ended.code) == ("FAILED", SAVED), str(ended)
    (step,) = re.findall(r"given notice before step ([\d,]+): the time limit is in", ended.output)
    if how == "signal":
        assert saved["step"] == int(step.replace(",", "")) - 1
    elif how == "due":
        assert saved["step"] == int(step.replace(",", ""))
    assert "saved, not finished: the workers left after the notice" in ended.output, str(ended)
    assert "restart" not in ended.output


def require_nothing_saved(job: Job) -> None:
    """Wait for the end of a job that ignores notice, before its time limit."""
    ended = job.wait()
    assert ended.code == 143, str(ended)
    assert "nothing was saved after the notice" in ended.output
    assert "DUE TO TIME LIMIT" not in ended.output


def test_all_ranks_save_before_the_time_limit(launch: Launch, tmp_path: Path) -> None:
    """Limit four jobs, and a step, which has a minute from its start.

    One of the scripts ignores notice.
    """
    srun = "srun --time=1 hpclaunch"
    of_step = launch(*SETTINGS, *AMPLE, ENDING, "due", "light", nodes=2, srun=srun, env=LIGHT_TORCH)
    until_it_trains(of_step)  # before other jobs slow it down
    jobs = {
        "signal": limited(launch, tmp_path / "signal", "signal"),
        "due": limited(launch, tmp_path / "due", "due", "light", env=LIGHT_TORCH),
        "file": limited(launch, tmp_path / "file", "file", "light", env=LIGHT_TORCH),
    }
    unaware = limited(launch, tmp_path / "unaware", "unaware", "light", env=LIGHT_TORCH)
    for job in jobs.values():
        limit(job, 35)
    limit(unaware, 20)
    require_nothing_saved(unaware)
    for how, job in jobs.items():
        require_common_save_at_end(job, how)
    require_common_save_at_end(of_step, "due")


@lightly
def test_a_job_that_is_preempted(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    settings = (*SETTINGS, *AMPLE, "--grace", 15)
    job = launch(*settings, ENDING, "signal", "stays", "light", nodes=2, srun=SRUN)
    until_it_trains(job)
    urgent = cluster.sbatch(
        "true", directory=tmp_path, nodes=4, options=["--partition=urgent", "--exclusive"]
    )
    ended = job.wait()
    assert "the job is preempted: it ends in" in ended.output, str(ended)
    common_save(tmp_path)
    text = r"saved, not finished: ended (\d+) s before its preemption"
    early = [int(seconds) for seconds in re.findall(text, ended.output)]
    assert 0 < min(early) <= max(early) <= 18  # --grace and the time to ask for another run
    assert urgent.wait().code == 0


def signal_one_agent(cluster: Cluster) -> None:
    """Signal one agent only: Slurm would signal the workers as well, at any step."""
    agent = cluster.process(AGENT, host="n2")
    os.kill(agent.pid, signal.SIGUSR1)


@lightly
def test_a_signal_reaches_all_ranks_at_one_step(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    job = launch(*SETTINGS, ENDING, "signal", "stays", "light", nodes=2, srun=SRUN)
    until_it_trains(job)
    for _ in range(2):
        signal_one_agent(cluster)
        names = [tmp_path / f"saved-{rank}.json" for rank in range(RANKS)]
        eventually("saves", lambda: all(name.exists() for name in names))  # noqa: B023
        common_save(tmp_path)
        for name in names:
            name.unlink()
        eventually("no further save", lambda: not any(name.exists() for name in names))  # noqa: B023
    job.cancel()
    ended = job.wait()
    assert "hpclaunch: ended by SIGTERM on n" in ended.output, str(ended)


@lightly
def test_workers_that_leave_after_a_signal(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    job = launch(*SETTINGS, ENDING, "signal", "light", nodes=2, srun=SRUN)
    until_it_trains(job)
    signal_one_agent(cluster)
    ended = job.wait()
    common_save(tmp_path)
    assert ended.code == SAVED, str(ended)
    assert "given notice" not in ended.output


@lightly
@pytest.mark.parametrize(("how", "name"), [("agreed", "SIGUSR1"), ("alone", "SIGUSR2")])
def test_workers_that_leave_at_slurms_own_signal(
    launch: Launch, tmp_path: Path, how: str, name: str
) -> None:
    """The workers leave before the step of the notice."""
    job = launch(*SETTINGS, ENDING, how, "light", nodes=2, srun=SRUN)
    until_it_trains(job)
    job.cancel(f"--signal={name}")
    ended = job.wait()
    assert ended.code == SAVED, str(ended)
    assert "saved, not finished: the workers left after" in ended.output, str(ended)
    if how == "agreed":
        common_save(tmp_path)
