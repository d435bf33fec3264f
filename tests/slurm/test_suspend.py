"""A job that Slurm suspends, as an administrator or gang scheduling does."""

from __future__ import annotations

import time

import pytest

from .cluster import CONTROLLER, Cluster, eventually
from .conftest import SCRIPTS, WORKER, Launch

TELL = SCRIPTS / "tell.py"
LOSS = 5.0  # seconds; on a busy machine nodes do not go on at the same time
LONG = 12.0  # seconds; more than twice as long as any lease of the elastic job


@pytest.mark.parametrize("nnodes", ["3", "2:3"], ids=["fixed", "elastic"])
def test_it_goes_on_in_the_same_round(cluster: Cluster, launch: Launch, nnodes: str) -> None:
    options = ("--nnodes", nnodes, *(("--loss-timeout", LOSS) if ":" in nnodes else ()))
    job = launch("--nproc", 2, *options, TELL, "--until", "go", "--child")
    job.until_all_run(6)
    workers = {p.pid: p for p in cluster.processes(WORKER)}
    for _ in range(2):
        cluster.on(CONTROLLER, ["scontrol", "suspend", str(job.id)])
        time.sleep(LONG)
        assert all(p.is_held for p in workers.values())
        cluster.on(CONTROLLER, ["scontrol", "resume", str(job.id)])
        eventually("all go on", lambda: not any(p.is_held for p in workers.values()))
    assert {p.pid for p in cluster.processes(WORKER)} == workers.keys()
    (job.directory / "go").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert "lost" not in ended.output
    assert "going on" not in ended.output
    assert "stopped" not in ended.output
