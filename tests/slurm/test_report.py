"""The ledger of a real job accounts for every second of each worker's place."""

from __future__ import annotations

import json
import stat

import pytest

from hpclaunch.system.hosts import slurm_end

from .asking import logs, report
from .cluster import Cluster
from .conftest import PATIENT, SCRIPTS, Launch

pytestmark = pytest.mark.torch

COSTLY = SCRIPTS / "costly.py"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def test_a_failure_a_restart_a_save_and_a_spare(cluster: Cluster, launch: Launch) -> None:
    arguments = (COSTLY, "--dir", "saved", "--steps", 60, "--save", 20, "--fail", 35)
    options = ("--nproc", 2, "--nnodes", 1, *PATIENT, "--checkpoint-dir", "saved")
    begin = 'scontrol show job "$SLURM_JOB_ID" | grep -o "StartTime=[^ ]*"'
    when = f"({begin}; date +%s.%N) > when"
    job = launch(*options, *arguments, env=ONE_THREAD, after=when, nodes=2)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    result = report(cluster, job)
    seconds = result["seconds"]
    began, ended_at = (job.directory / "when").read_text().split()
    allocated, over = slurm_end.seconds(began.partition("=")[2]), float(ended_at)
    assert allocated is not None
    assert result["seats"] == 4
    assert result["begin"] == allocated
    last = job.directory / "saved" / "step-60.pt"
    assert last.stat().st_mtime < result["end"] < over
    whole = 4 * (result["end"] - allocated)
    assert sum(seconds.values()) == pytest.approx(whole, rel=0.01)
    assert result["goodput"] == pytest.approx(seconds["training"] / whole, rel=0.01)
    # Two of four workers train for 60 steps of a tenth of a second; 15 steps are done twice.
    assert seconds["training"] > 2 * 50 * 0.1
    assert seconds["steps done twice"] > 2 * 10 * 0.1
    assert seconds["idle spare"] > seconds["training"] / 2
    assert seconds["saving"] > 0
    assert {"job script", "imports", "rendezvous", "loading", "restart"} <= seconds.keys()
    assert "unknown" not in seconds
    (end,) = result["ends"]
    assert (end["round"], end["cause"], end["text"]) == (0, "exception", "ValueError: a bad batch")
    assert end["who"].startswith("rank 1 on n")
    assert end["evidence"][0].startswith("costly.py:")
    written = json.loads((logs(job) / "report.json").read_text())
    assert written["seconds"] == seconds
    modes = {stat.S_IMODE(f.stat().st_mode) for f in logs(job).glob("*.json")}
    assert modes == {0o600}
