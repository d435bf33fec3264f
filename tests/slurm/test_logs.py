"""hpclaunch logs on a login node: the lines of two nodes by time, with a restart."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from .cluster import CONTROLLER, Cluster, Job, eventually
from .conftest import Launch

# The ranks write in turn, each once the last line is on the console: by then it has its time.
IN_TURN = """
import os, pathlib, sys, time
rank, restarts = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
(console,) = pathlib.Path().glob("job-*.out")

def is_shown(turn):
    lines = console.read_text().splitlines()
    return lines.count(f"turn {turn}") > int(restarts)

for turn in range(rank, 8, 2):
    while turn and not is_shown(turn - 1):
        time.sleep(0.02)
    time.sleep(0.1)
    print(f"turn {turn}", file=sys.stderr, flush=True)  # srun does not buffer stderr
while not is_shown(7):
    time.sleep(0.02)
pathlib.Path(f"all-{restarts}").touch()
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
    job = launch("--nproc", 1, "in_turn.py", nodes=2)
    head, again = f"-- {job.id}.0 round 0", f"-- {job.id}.0 round 1; round 0 ended: {CAUSE}"
    eventually("all turns", (tmp_path / "all-0").exists)
    eventually("a round", lambda: logs(cluster, job) == [head, *TURNS])
    (tmp_path / "go-0").touch()
    eventually("all turns", (tmp_path / "all-1").exists)
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
