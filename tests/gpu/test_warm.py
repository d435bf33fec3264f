"""Workers are forked from a process that has imported torch, but never from one with CUDA."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from hpclaunch.worker.mps_keeper import has_cuda_context

from .conftest import Launch
from .jobs import Machine, devices


def ancestors(pid: int, launcher: int) -> list[int]:
    """Return the processes from which a worker was forked: its template and the fork server."""
    found = [parent.pid for parent in psutil.Process(pid).parents()]
    return found[: found.index(launcher)]


@pytest.mark.parametrize("preload", [(), ("--preload", "auto")])
def test_only_workers_have_cuda(launch: Launch, machine: Machine, preload: tuple[str, ...]) -> None:
    """Check this before and after a restart.

    The agent and the GPU watcher have the devices open, for NVML; the processes from which workers
    are forked have none.
    """
    job = launch("--nproc", 2, "--mps", "off", *preload)
    for restarts in (0, 1):
        states = job.states(2, restarts=restarts)
        workers = {t["pid"] for t in states}
        assert all(map(has_cuda_context, workers))
        others = job.family() - workers
        assert not any(map(has_cuda_context, others))
        for worker in workers:
            assert not any(map(devices, ancestors(worker, job.launcher.pid)))
        holders = machine.holders()
        assert not holders & others
        assert holders >= workers or not holders & workers  # a container hides all of them
        if not restarts:
            os.kill(states[0]["pid"], signal.SIGKILL)
    states = [e["with"]["state"] for e in job.journal() if e.get("note") == "template"]
    assert "ready" in states, job.output
    assert job.go() == 0, job.output
