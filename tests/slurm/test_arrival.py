"""Agents that start at different times wait for each other."""

from __future__ import annotations

import re

from .cluster import eventually
from .conftest import SCRIPTS, Launch

SIMPLE = SCRIPTS / "simple.py"
SOON = {"first_notice": 2.0, "next_notice": 2.0}  # seconds until agents say what they wait for

HEAD_WAITS = "until [ -e hpclaunch-logs/*/journal.jsonl ]; do sleep 0.1; done; sleep 1"


def late(who: str, wait: str) -> str:
    """Return an srun in which the tasks of these nodes start late."""
    return f"""srun bash -c '[ "$SLURM_NODEID" {who} ] && {wait}; hpclaunch "$@"' bash"""


def test_a_late_head(launch: Launch) -> None:
    """Let the head start so late that the others say what they wait for."""
    srun = late("= 0", "until [ -e start ]; do sleep 0.1; done")
    job = launch("--nproc", 1, SIMPLE, srun=srun, timing=SOON)
    for host in ("n2", "n3"):
        waits = r"waited \d+ s for the head on n1: n1 \(10\.78\.0\.11\) is up, but"
        text = rf"hpclaunch: {host} has {waits}"
        eventually(text, lambda: re.search(text, job.output))  # noqa: B023
    (job.directory / "start").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert list(job.environments()) == [0, 1, 2]


def test_late_members(launch: Launch) -> None:
    job = launch("--nproc", 1, SIMPLE, srun=late("!= 0", HEAD_WAITS), nodes=2)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert list(job.environments()) == [0, 1]
    assert "hpclaunch:" not in ended.output


def test_one_task_of_several_on_each_node(launch: Launch) -> None:
    """The message says which tasks are missing, though both nodes take part."""
    srun = """srun bash -c 'test $SLURM_LOCALID = 0 && hpclaunch "$@"' bash"""
    options, timing = ["--ntasks-per-node=2"], SOON | {"goodbye": 3.0}
    job = launch("--nproc", 1, SIMPLE, srun=srun, nodes=2, options=options, timing=timing)
    text = (
        r"hpclaunch: waiting for n1, n2 \(\d+ s so far\); 2 of 4 agents are here; hpclaunch runs "
        "in 1 of 2 tasks on n1: start it in all of them, or ask Slurm for --ntasks-per-node=1"
    )
    eventually(text, lambda: re.search(text, job.output))
    job.cancel()
    job.wait()
