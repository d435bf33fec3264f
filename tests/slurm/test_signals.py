"""Signals that Slurm sends: one that the user asked for, and those at the end of a job."""

from __future__ import annotations

import signal
from pathlib import Path

from .cluster import Cluster, eventually
from .conftest import AGENT, FORK_SERVER, SCRIPTS, WORKER, Launch

SIMPLE = SCRIPTS / "simple.py"
SRUN = "srun hpclaunch"  # a shell in between would die of the signals


def test_usr1_reaches_the_workers_and_they_continue(launch: Launch, tmp_path: Path) -> None:
    job = launch("--nproc", 2, SIMPLE, "--until", "enough", srun=SRUN, nodes=2)
    job.wait_for_workers(4)
    job.cancel("--signal=USR1")
    # Slurm has signalled the workers as well. The file shows that the launcher has, too.
    for rank, environment in job.environments().items():
        notice = Path(environment["HPCLAUNCH_NOTICE_FILE"])
        eventually(f"the notice of rank {rank}", notice.exists)
        eventually(f"SIGUSR1 at rank {rank}", (tmp_path / f"usr1-{rank}").exists)
    (tmp_path / "enough").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert ended.state == "COMPLETED"
    assert "hpclaunch:" not in ended.output


def test_scancel_lets_the_workers_save(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    job = launch("--nproc", 1, SIMPLE, "--save", "--until", "never", srun=SRUN, nodes=2)
    job.wait_for_workers(2)
    job.cancel()
    ended = job.wait()
    assert ended.state == "CANCELLED", str(ended)
    for rank in range(2):
        assert (tmp_path / f"asked-{rank}").exists()
        assert (tmp_path / f"saved-{rank}").exists()
    assert "hpclaunch: ended by SIGTERM on n" in ended.output
    assert "store" not in ended.output
    eventually("no process on the nodes", lambda: not cluster.processes())


def test_an_interrupt_by_slurm_is_received_once(launch: Launch, tmp_path: Path) -> None:
    """Slurm sends SIGINT to every process of the step, so the agents must not send another."""
    job = launch("--nproc", 1, SIMPLE, "--save", "--until", "never", srun=SRUN, nodes=2)
    job.wait_for_workers(2)
    job.cancel("--signal=INT")
    ended = job.wait()
    assert ended.code == 128 + signal.SIGINT, str(ended)
    for rank in range(2):
        assert (tmp_path / f"asked-{rank}").read_text() == "SIGINT"
        assert (tmp_path / f"saved-{rank}").exists()


def test_an_interrupt_of_one_agent_reaches_the_workers_of_all(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    job = launch("--nproc", 1, SIMPLE, "--save", "--until", "never", srun=SRUN)
    job.wait_for_workers(3)
    agent = cluster.process(AGENT, "n2")
    agent.kill(signal.SIGINT)
    ended = job.wait()
    assert ended.code == 128 + signal.SIGINT, str(ended)
    assert "hpclaunch: ended by SIGINT on n2" in ended.output
    for rank in range(3):
        assert (tmp_path / f"asked-{rank}").read_text() == "SIGINT"
        assert (tmp_path / f"saved-{rank}").exists()


def test_scancel_while_agents_wait_for_each_other(cluster: Cluster, launch: Launch) -> None:
    """The head never arrives: the others end at scancel, before Slurm kills them."""
    script = '[ "$SLURM_NODEID" = 0 ] && exec sleep 600; exec hpclaunch "$@"'
    job = launch(
        "--nproc", 1, SIMPLE, srun=f"srun bash -c '{script}' bash", timing={"goodbye": 3.0}
    )
    eventually("agents", lambda: len(cluster.processes(FORK_SERVER)) == 2)
    job.cancel()
    ended = job.wait()
    assert ended.state == "CANCELLED", str(ended)
    for host in ("n2", "n3"):
        assert f"hpclaunch: {host}: ended by SIGTERM while waiting for n1" in ended.output


def test_after_nohup_a_hangup_ends_nothing(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """Agents and workers ignore SIGHUP on all nodes."""
    srun = "srun nohup hpclaunch"
    job = launch("--nproc", 1, SIMPLE, "--save", "--until", "never", srun=srun, nodes=2)
    job.wait_for_workers(2)
    workers = cluster.processes(WORKER)
    assert len(workers) == 2, workers
    for process in workers:
        status = Path(f"/proc/{process.pid}/status").read_text()
        ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
        assert ignored & 1 << signal.SIGHUP - 1, status
    job.cancel("--signal=HUP")
    job.cancel("--signal=USR1")
    for rank in range(2):
        eventually(f"SIGUSR1 at rank {rank}", (tmp_path / f"usr1-{rank}").exists)
    job.cancel()
    ended = job.wait()
    assert ended.state == "CANCELLED", str(ended)
    assert "hpclaunch: ended by SIGTERM on n" in ended.output
    assert "SIGHUP" not in ended.output
    assert "restart" not in ended.output
