"""A job that is suspended by Slurm, as by an administrator or gang scheduling."""

from __future__ import annotations

import time
from pathlib import Path

from .cluster import CONTROLLER, Cluster, eventually
from .conftest import SCRIPTS, WORKER, Launch

SIMPLE = SCRIPTS / "simple.py"
LOSS = 6.0  # seconds; on a busy machine, nodes do not resume at the same time
LONG, AGAIN = 14.0, 8.0  # seconds; about twice as long as any lease of the elastic job, and longer


def test_it_continues_in_the_same_round(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """Suspend a job of a fixed size, and an elastic one."""
    jobs = []
    for name, *options in (["fixed"], ["elastic", "--nnodes", "2:3", "--loss-timeout", LOSS]):
        (tmp_path / name).mkdir()
        script = (SIMPLE, "--until", "go", "--child")
        jobs.append(launch("--nproc", 1, *options, *script, directory=tmp_path / name))
    for job in jobs:
        job.wait_for_workers(3)
    workers = {p.pid: p for p in cluster.processes(WORKER)}
    assert len(workers) == 6
    for seconds in (LONG, AGAIN):
        for job in jobs:
            cluster.on(CONTROLLER, ["scontrol", "suspend", str(job.id)])
        time.sleep(seconds)
        assert all(p.is_stopped for p in workers.values())
        for job in jobs:
            cluster.on(CONTROLLER, ["scontrol", "resume", str(job.id)])
        eventually("all workers continue", lambda: not any(p.is_stopped for p in workers.values()))
    assert {p.pid for p in cluster.processes(WORKER)} == workers.keys()
    for job in jobs:
        (job.directory / "go").touch()
        ended = job.wait()
        assert ended.code == 0, str(ended)
        assert "lost" not in ended.output
        assert "continuing with" not in ended.output
        assert "stopped" not in ended.output
