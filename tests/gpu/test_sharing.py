"""Several workers on one GPU, with and without MPS."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from itertools import combinations
from pathlib import Path

import pytest

from .conftest import Launch, Run
from .jobs import CONTROL, ROOT, Machine, WorkerState, clients, control, environment, servers

PIPE = "CUDA_MPS_PIPE_DIRECTORY"


def pipe_of(states: list[WorkerState]) -> str:
    """Return the pipe directory that all workers have."""
    (pipe,) = {t["env"][PIPE] for t in states}
    return pipe


def all_are_clients(states: list[WorkerState], pipe: str) -> bool:
    return clients(pipe) >= {t["pid"] for t in states}


@pytest.mark.parametrize(
    ("workers", "mps", "used"),
    [
        (1, "auto", False),
        (1, "on", True),
        (2, "auto", True),
        (2, "off", False),
        (8, "auto", True),
        (8, "off", False),
    ],
)
def test_workers_on_one_gpu(
    launch: Launch,
    machine: Machine,
    temporary: Path,
    request: pytest.FixtureRequest,
    workers: int,
    mps: str,
    used: bool,
) -> None:
    """All workers see the GPU as device 0, which is also their LOCAL_RANK."""
    if used:
        request.getfixturevalue("real_mps")
    job = launch("--nproc", workers, "--mps", mps)
    states = job.states(workers)
    for position, t in enumerate(states):
        assert (t["devices"], t["product"], t["met"]) == (1, 64**3, workers)
        assert t["first"] == t["by_local_rank"] == machine.uuid
        assert t["env"]["HPCLAUNCH_LOCAL_RANK"] == str(position)
        assert t["env"]["LOCAL_RANK"] == "0"
    if workers <= len(os.sched_getaffinity(0)):
        sets = [set(t["cpus"]) for t in states]
        assert not any(a & b for a, b in combinations(sets, 2))
    if used:
        require_mps(states, machine, temporary)
    else:
        assert not any(PIPE in t["env"] for t in states)
        assert not list(temporary.glob("hpclaunch-mps-*"))
    assert job.go() == 0, job.output


def require_mps(states: list[WorkerState], machine: Machine, temporary: Path) -> None:
    """Require that the workers use MPS, by the daemon, by files, and by the driver."""
    pipe = pipe_of(states)
    (own,) = temporary.glob("hpclaunch-mps-*")
    assert own in Path(pipe).parents
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert all_are_clients(states, pipe)
    (server,) = servers(pipe)
    listed = control(pipe, "ps").split()
    assert all(str(t["pid"]) in listed for t in states)
    holders = machine.holders()
    if not holders & {server, *(t["pid"] for t in states)}:
        return  # a container in which NVML names no processes
    assert server in holders


@pytest.mark.usefixtures("real_mps")
def test_limits_of_a_client(launch: Launch) -> None:
    """Each client has a quarter of the multiprocessors, and at most 2 GiB."""
    limits = ("--mps-threads", 25, "--mps-memory", "2G")
    alone = launch("--nproc", 1, "--mps", "off", words=("--beyond", 4096))
    (free,) = alone.states(1)
    assert alone.go() == 0, alone.output
    job = launch("--nproc", 2, *limits, words=("--mib", 512, "--beyond", 4096))
    states = job.states(2)
    assert free["room"]
    assert not any(t["room"] for t in states)
    assert all(t["processors"] < free["processors"] for t in states)
    assert {t["env"]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for t in states} == {"25"}
    assert {t["env"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for t in states} == {"0=2G"}
    assert job.go() == 0, job.output


@pytest.mark.usefixtures("real_mps")
def test_another_users_daemon_is_used_and_not_stopped(launch: Launch, temporary: Path) -> None:
    pipe, logs = temporary / "theirs", temporary / "their-logs"
    pipe.mkdir()
    logs.mkdir()
    names = {PIPE: str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    subprocess.run([CONTROL, "-d"], env=environment(**names), check=True, timeout=60)
    try:
        job = launch("--nproc", 2, **names)
        states = job.states(2)
        assert pipe_of(states) == str(pipe)
        assert all_are_clients(states, str(pipe))
        assert job.go() == 0, job.output
        assert control(str(pipe), "get_server_list").split()
    finally:
        control(str(pipe), "quit")


def test_the_recipe(run: Run, temporary: Path) -> None:
    """Start eight replicas, as `sbatch/mps_replicas.sbatch` does."""
    ended = run("--nproc", 8, ROOT / "workers" / "mps_replicas.py", "--dir", temporary / "saved")
    assert ended.returncode == 0, ended.stdout
    (reached,) = re.findall(r"^accuracy (.*)$", ended.stdout, re.MULTILINE)
    assert float(reached) > 0.95
    assert re.search(r"^images/s \d+$", ended.stdout, re.MULTILINE)
