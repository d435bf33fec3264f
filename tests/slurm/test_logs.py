"""hpclaunch logs on a login node: the lines of two nodes by time, with a restart."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from .cluster import CONTROLLER, Cluster, Job, eventually
from .conftest import Launch

# The ranks write in turn, so that their lines have only one order.
IN_TURN = """
import os, pathlib, sys, time
rank, restarts = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
for turn in range(rank, 8, 2):
    while turn and not pathlib.Path(f"turn-{restarts}-{turn - 1}").exists():
        time.sleep(0.02)
    time.sleep(0.3)
    print(f"turn {turn}", flush=True)
    pathlib.Path(f"turn-{restarts}-{turn}").touch()
while not pathlib.Path(f"go-{restarts}").exists():
    time.sleep(0.02)
sys.exit(rank == 1 and restarts == "0")
"""
TURNS = [f"[{turn % 2}]: turn {turn}" for turn in range(8)]
CAUSE = "exit code, rank 1 on n2, exit code 1"


def logs(cluster: Cluster, job: Job, *options: str) -> list[str]:
    """Return the lines of a job, without the times."""
    command = shlex.join(["hpclaunch", "logs", str(job.id), *options])
    script = f"cd {shlex.quote(str(job.directory))} && {command}"
    text = cluster.on(CONTROLLER, ["sh", "-c", script])
    return [re.sub(r"^\S+ (?=\[)|, \d{4}-\S+ \S+\d", "", line) for line in text.splitlines()]


def test_two_nodes_and_a_restart(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """Show the lines while the job runs, and after its end. All nodes here share a clock."""
    (tmp_path / "in_turn.py").write_text(IN_TURN)
    job = launch("--nproc", 1, "-r", 3, "in_turn.py", nodes=2)
    head, again = f"-- {job.id}.0 round 0", f"-- {job.id}.0 round 1; round 0 ended: {CAUSE}"
    eventually("all turns", (tmp_path / "turn-0-7").exists)
    eventually("a round", lambda: logs(cluster, job) == [head, *TURNS])
    (tmp_path / "go-0").touch()
    eventually("all turns", (tmp_path / "turn-1-7").exists)
    eventually("two rounds", lambda: logs(cluster, job) == [head, *TURNS, again, *TURNS])
    (tmp_path / "go-1").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert logs(cluster, job) == [head, *TURNS, again, *TURNS]
    assert logs(cluster, job, "--follow") == [head, *TURNS, again, *TURNS]
    assert logs(cluster, job, "--node", "n2", "--grep", "[57]") == [
        head,
        *TURNS[5::2],
        again,
        *TURNS[5::2],
    ]
