"""Checkpoints in memory in a Slurm job: what was saved is on storage when Slurm ends the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .cluster import CONTROLLER, Cluster, Job, eventually
from .conftest import SCRIPTS, Launch

SRUN = "srun hpclaunch"  # a shell in between would die of the signals
OPTIONS = ("--nproc", 1, "--stage", "--checkpoint-dir", "saved")
# It saves once more when it is asked to leave, which takes a moment.
LEAVES = f"""
import signal, sys, time
from pathlib import Path
sys.path.insert(0, {str(SCRIPTS)!r})
from resume import save
directory = Path(sys.argv[1])
def leave(*_):
    time.sleep(2)
    save(2, directory / "step-2.pt")
    sys.exit(1)
signal.signal(signal.SIGTERM, leave)
save(1, directory / "step-1.pt")
Path("begun").touch()
while True:
    time.sleep(0.1)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "leaves.py"
    path.write_text(LEAVES)
    return path


def until_it_has_saved(job: Job) -> None:
    eventually("the first save", (job.directory / "begun").exists)


def require_last_save(directory: Path) -> None:
    assert (directory / "saved" / "step-2.pt").exists()
    (facts,) = directory.glob("hpclaunch-logs/*/facts.jsonl")
    (began,) = (line for line in facts.read_text().splitlines() if "StageBegan" in line)
    assert not Path(json.loads(began)["directory"]).parent.exists()


def test_a_cancelled_job(launch: Launch, script: Path, tmp_path: Path) -> None:
    job = launch(*OPTIONS, script, "saved", srun=SRUN, nodes=1)
    until_it_has_saved(job)
    job.cancel()
    ended = job.wait()
    assert ended.state == "CANCELLED", str(ended)
    require_last_save(tmp_path)


def test_a_job_at_its_time_limit(
    cluster: Cluster, launch: Launch, script: Path, tmp_path: Path
) -> None:
    timing = {"ask_end": 1.0, "ask_again": 1.0}
    more = {"srun": SRUN, "nodes": 1, "options": ["--time=5"], "timing": timing}
    job = launch(*OPTIONS, "--grace", 5, "--notice", 15, script, "saved", **more)
    until_it_has_saved(job)
    cluster.on(CONTROLLER, ["scontrol", "update", f"JobId={job.id}", "EndTime=now+28"])
    ended = job.wait()
    assert ended.code == 75, str(ended)
    assert f"with {tmp_path}/saved/step-2.pt" in ended.output
    require_last_save(tmp_path)


def test_several_tasks_on_a_node_are_refused(launch: Launch, script: Path) -> None:
    ended = launch(*OPTIONS, script, "saved", nodes=2, options=["--ntasks-per-node=2"]).wait()
    assert ended.code == 2, str(ended)
    refused = "--stage needs one task on each node, not 4 tasks on 2 nodes: add --ntasks-per-node=1"
    assert ended.output.count(refused) == 1
