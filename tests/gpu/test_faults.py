"""CUDA and MPS after a worker, a daemon or the launcher was killed or has failed."""

from __future__ import annotations

import os
import signal

import pytest

from living import living
from slurm.cluster import eventually

from .conftest import Launch
from .jobs import (
    Job,
    KernelLog,
    Machine,
    WorkerState,
    clients,
    control,
    mps_processes,
    servers,
)

PIPE = "CUDA_MPS_PIPE_DIRECTORY"
HELD = 1024  # MiB per worker: more than other changes of the GPU's used memory


def gone(states: list[WorkerState]) -> bool:
    return not living(t["pid"] for t in states)


def is_active(pipe: str) -> bool:
    """Return whether all servers are active; drivers up to 535 do not know the command."""
    answers = [control(pipe, f"get_server_status {server}") for server in servers(pipe)]
    return all("ACTIVE" in answer or "Unknown command" in answer for answer in answers)


@pytest.mark.parametrize("mps", ["auto", "off"])
@pytest.mark.parametrize("start", ["warm", "cold"])
def test_a_worker_is_killed(launch: Launch, machine: Machine, mps: str, start: str) -> None:
    """All workers start again on the GPU, whose memory the first ones have released."""
    options = ["--cold"] if start == "cold" else []
    job = launch("--nproc", 2, "--mps", mps, *options, words=("--mib", HELD))
    first = job.states(2)
    used = machine.used()
    os.kill(first[1]["pid"], signal.SIGKILL)
    second = job.states(2, restarts=1)
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
    """With MPS, all clients of the GPU fail, and the next round has a healthy server.

    The driver's Xid is in the kernel's log, and in the launcher's account of the failure.
    """
    job = launch("--nproc", 2, "--mps", mps)
    first = job.states(2)
    log = KernelLog()
    job.crash()
    second = job.states(2, restarts=1)
    assert gone(first)
    assert [t["product"] for t in second] == [64**3] * 2
    assert "illegal memory access" in output_of_rank_1(job)
    if pipe := second[0]["env"].get(PIPE):
        assert clients(pipe) >= {t["pid"] for t in second}
        assert is_active(pipe)
    assert "cordoned" not in job.output  # the program's fault, not the GPU's
    assert job.go() == 0, job.output
    in_kernel = log.xids()
    print("the kernel's log:", "not readable" if in_kernel is None else in_kernel, job.output)
    assert not in_kernel or "Xid" in job.output


def output_of_rank_1(job: Job) -> str:
    return (job.directory / "logs" / "round-0" / "rank-1.out").read_text()


@pytest.mark.usefixtures("real_mps")
def test_the_mps_daemon_is_killed(launch: Launch) -> None:
    """The clients cannot continue without its server, and the next round has a new daemon."""
    others = mps_processes()
    job = launch("--nproc", 2)
    first = job.states(2)
    for pid in mps_processes() - others:
        os.kill(pid, signal.SIGKILL)
    if living([first[0]["pid"]]):  # a client that does not use the GPU survives
        os.kill(first[0]["pid"], signal.SIGKILL)
    second = job.states(2, restarts=1)
    assert clients(second[0]["env"][PIPE]) >= {t["pid"] for t in second}
    assert job.go() == 0, job.output


@pytest.mark.parametrize("mps", ["auto", "off"])
def test_the_launcher_is_killed(launch: Launch, machine: Machine, mps: str) -> None:
    """No process and no GPU memory is left; `nothing_left` checks daemons and files."""
    used = machine.used()
    job = launch("--nproc", 4, "--mps", mps, words=("--mib", HELD))
    states = job.states(4)
    assert machine.used() > used + 4 * HELD
    family = job.family()
    job.launcher.kill()
    eventually("no process of the job", lambda: not living(family) and gone(states))
    eventually("release of the memory", lambda: machine.used() < used + HELD / 2)


def test_the_launcher_receives_sigterm(launch: Launch, machine: Machine) -> None:
    used = machine.used()
    job = launch("--nproc", 2, words=("--mib", HELD))
    states = job.states(2)
    family = job.family()
    job.launcher.terminate()
    assert job.launcher.wait(60) == 128 + signal.SIGTERM
    eventually("no process of the job", lambda: not living(family) and gone(states))
    eventually("release of the memory", lambda: machine.used() < used + HELD / 2)
