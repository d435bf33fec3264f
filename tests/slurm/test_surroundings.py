"""The result is right when a job's store, the disk of its logs, or Slurm fails."""

from __future__ import annotations

import importlib.util
import re
import shlex
import signal
from pathlib import Path

import pytest

from .cluster import CONTROLLER, Cluster, eventually
from .conftest import AGENT, PATIENT, SCRIPTS, Launch
from .hosts import Process
from .training import ENOUGH, finish, result, train, wait_for_progress


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_the_store_process_is_killed(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """The round is restarted, since workers may need the store again and would wait for it."""
    saved = tmp_path / "saved"
    job = train(launch, saved, "--nproc", 2, nodes=1)

    def forked() -> list[Process]:
        """Return the template, and the store that was forked from it."""
        return cluster.processes(r"\(template\)", host="n1")

    eventually("a store", lambda: len(forked()) == 2)
    max(forked(), key=lambda process: process.pid).kill()
    job.says("the store process on n1 was killed by SIGKILL; restart 1 of 3")
    ended = finish(job, saved)
    assert ended.code == 0, str(ended)


@pytest.mark.usefixtures("light_torch")
def test_the_disk_of_the_logs_is_full(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    saved, logs = tmp_path / "saved", tmp_path / "logs"
    logs.mkdir()
    cluster.on("n2", ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(logs)])
    try:
        job = train(launch, saved, "--log-dir", logs, "--health", "off", nodes=2)
        filler = f"dd if=/dev/zero of='{logs}/full' bs=4k || true"
        cluster.on("n2", ["sh", "-c", filler])

        def is_missed() -> bool:
            """Return whether a write has failed, after the file's last page is full."""
            for agent in cluster.processes(AGENT, host="n2"):
                agent.kill(signal.SIGUSR1)
            text = f"No space left on device: {logs}\n"  # of any file
            return bool(re.search(rf"cannot write \S+: {re.escape(text)}", job.output))

        eventually("a message about the disk", is_missed)
        wait_for_progress(saved, 4)
        ended = finish(job, saved)
    finally:
        cluster.on("n2", ["umount", str(logs)])
    assert ended.code == 0, str(ended)


@pytest.mark.usefixtures("light_torch")
def test_slurm_does_not_answer(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """A node is lost while slurmctld is down, which is not needed to continue."""
    saved = tmp_path / "saved"
    job = train(launch, saved, "--nnodes", "2:3", *PATIENT)
    cluster.on(CONTROLLER, ["scontrol", "shutdown", "slurmctld"])
    try:
        agent = cluster.process(AGENT, host="n3")
        agent.kill()
        job.says("continuing without n3: 2 nodes")
        wait_for_progress(saved, 2)
        (tmp_path / ENOUGH).touch()
        eventually("the exit codes", lambda: {0, 1} <= job.codes.keys())
    finally:
        cluster.start_daemon(CONTROLLER, "slurmctld")
    ended = finish(job, saved)
    assert {job.codes[task] for task in (0, 1)} == {0}, str(ended)


@pytest.mark.usefixtures("light_torch")
def test_slurm_takes_a_node_down_and_back(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """With --no-kill for sbatch and srun, the others continue; later the node is usable again."""
    srun = f"srun --no-kill {SCRIPTS}/agent.sh"
    saved = tmp_path / "saved"
    more = {"options": ["--no-kill"], "timing": {"goodbye": 4.0}}
    job = train(launch, saved, "--nnodes", "2:3", srun=srun, **more)
    update = ["scontrol", "update", "nodename=n3"]
    cluster.on(CONTROLLER, [*update, "state=down", "reason=test"])
    try:
        job.says("continuing without n3: 2 nodes")
    finally:
        resume = shlex.join([*update, "state=resume"])
        cluster.on(CONTROLLER, ["sh", "-c", f"{resume} || true"])  # it may have resumed by itself
    wait_for_progress(saved, 2)
    ended = finish(job, saved)
    assert {job.codes[task] for task in (0, 1)} == {0}, str(ended)


@pytest.mark.usefixtures("light_torch")
def test_srun_is_killed(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """The tasks of the step continue without srun, as after the loss of the job script's node.

    Their output is in the files only.
    """
    saved, until = tmp_path / "saved", "while [ ! -e over ]; do sleep 0.1; done"
    job = train(launch, saved, "--log-dir", tmp_path / "logs", after=until, nodes=2)
    for srun in sorted(cluster.processes("^srun "), key=lambda p: -p.pid):
        srun.kill()  # the child first: it would have Slurm cancel the step
    wait_for_progress(saved, 2)
    (tmp_path / ENOUGH).touch()
    eventually("the exit codes", lambda: job.codes == {0: 0, 1: 0})
    (tmp_path / "over").touch()
    job.wait()
    text = (tmp_path / "logs" / "round-0" / "rank-0.out").read_text()
    assert text == f"final {result(saved)}\n"
