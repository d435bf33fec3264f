"""What is left of CUDA and of MPS when a worker, a daemon or the launcher goes in disorder."""

from __future__ import annotations

import os
import signal

import pytest

from slurm.cluster import eventually

from .conftest import Launch
from .jobs import (
    Job,
    KernelLog,
    Machine,
    Told,
    alive,
    clients,
    control,
    mps_processes,
    servers,
)

PIPE = "CUDA_MPS_PIPE_DIRECTORY"
HELD = 1024  # MiB per worker: more than anything else on the GPU changes by


def gone(told: list[Told]) -> bool:
    return not alive(t["pid"] for t in told)


def is_active(pipe: str) -> bool:
    """Of its servers; drivers up to 535 cannot be asked."""
    said = [control(pipe, f"get_server_status {server}") for server in servers(pipe)]
    return all("ACTIVE" in words or "Unknown command" in words for words in said)


@pytest.mark.parametrize("mps", ["auto", "off"])
@pytest.mark.parametrize("start", ["warm", "cold"])
def test_a_worker_is_killed(launch: Launch, machine: Machine, mps: str, start: str) -> None:
    """All start again on the GPU, whose memory the first ones gave back."""
    options = ["--cold"] if start == "cold" else []
    job = launch("--nproc", 2, "--mps", mps, *options, words=("--mib", HELD))
    first = job.told(2)
    used = machine.used()
    os.kill(first[1]["pid"], signal.SIGKILL)
    second = job.told(2, restarts=1)
    assert gone(first)
    eventually("the first round's memory", lambda: machine.used() < used + HELD / 2)
    assert [t["product"] for t in second] == [64**3] * 2
    if mps == "auto" and PIPE in first[0]["env"]:
        pipe = second[0]["env"][PIPE]
        assert clients(pipe) >= {t["pid"] for t in second}
        assert is_active(pipe)
    assert job.go() == 0, job.output


@pytest.mark.parametrize("mps", ["auto", "off"])
def test_an_illegal_address(launch: Launch, mps: str) -> None:
    """Under MPS it is the end of all clients of that GPU: the next round has a healthy server. The
    driver's word on it (an Xid) is in the kernel's log, and with the launcher's account of it."""
    job = launch("--nproc", 2, "--mps", mps)
    first = job.told(2)
    log = KernelLog()
    job.crash()
    second = job.told(2, restarts=1)
    assert gone(first)
    assert [t["product"] for t in second] == [64**3] * 2
    assert "illegal memory access" in said_by_rank_1(job)
    if pipe := second[0]["env"].get(PIPE):
        assert clients(pipe) >= {t["pid"] for t in second}
        assert is_active(pipe)
    assert "cordoned" not in job.output  # the program's fault, not the GPU's
    assert job.go() == 0, job.output
    in_kernel = log.xids()
    print("the kernel's log:", "may not be read" if in_kernel is None else in_kernel, job.output)
    assert not in_kernel or "Xid" in job.output


def said_by_rank_1(job: Job) -> str:
    return (job.directory / "logs" / "round-0" / "rank-1.out").read_text()


@pytest.mark.usefixtures("real_mps")
def test_the_mps_daemon_is_killed(launch: Launch) -> None:
    """With its server: the clients cannot go on, and the next round has a new one."""
    others = mps_processes()
    job = launch("--nproc", 2)
    first = job.told(2)
    for pid in mps_processes() - others:
        os.kill(pid, signal.SIGKILL)
    if alive([first[0]["pid"]]):  # nothing happens to a client that asks nothing of the GPU
        os.kill(first[0]["pid"], signal.SIGKILL)
    second = job.told(2, restarts=1)
    assert clients(second[0]["env"][PIPE]) >= {t["pid"] for t in second}
    assert job.go() == 0, job.output


@pytest.mark.parametrize("mps", ["auto", "off"])
def test_the_launcher_is_killed(launch: Launch, machine: Machine, mps: str) -> None:
    """No process is left, and nothing on the GPU; `nothing_left` looks for daemons and files."""
    used = machine.used()
    job = launch("--nproc", 4, "--mps", mps, words=("--mib", HELD))
    told = job.told(4)
    assert machine.used() > used + 4 * HELD
    family = job.family()
    job.launcher.kill()
    eventually("no process of it", lambda: not alive(family) and gone(told))
    eventually("the memory given back", lambda: machine.used() < used + HELD / 2)


def test_the_launcher_is_told_to_end(launch: Launch, machine: Machine) -> None:
    used = machine.used()
    job = launch("--nproc", 2, words=("--mib", HELD))
    told = job.told(2)
    family = job.family()
    job.launcher.terminate()
    assert job.launcher.wait(60) == 128 + signal.SIGTERM
    eventually("no process of it", lambda: not alive(family) and gone(told))
    eventually("the memory given back", lambda: machine.used() < used + HELD / 2)
