"""Workers are forked from a process that has imported torch, and never from one with CUDA."""

from __future__ import annotations

import os
import signal

import pytest

from .conftest import Launch
from .jobs import Job, Machine, Told, has_cuda


def helpers(job: Job, told: list[Told]) -> set[int]:
    """The agent, the fork server, its template, the store: everybody but the workers."""
    return job.family() - {t["pid"] for t in told}


@pytest.mark.parametrize("preload", [(), ("--preload", "auto")])
def test_only_workers_have_cuda(launch: Launch, machine: Machine, preload: tuple[str, ...]) -> None:
    """Before a restart, and after it."""
    job = launch("--nproc", 2, "--mps", "off", *preload)
    for restarts in (0, 1):
        told = job.told(2, restarts=restarts)
        workers = {t["pid"] for t in told}
        assert all(map(has_cuda, workers))
        assert not any(map(has_cuda, helpers(job, told)))
        holders = machine.holders()
        assert not holders & helpers(job, told)
        assert holders >= workers or not holders & workers  # a container hides all of them
        if not restarts:
            os.kill(told[0]["pid"], signal.SIGKILL)
    states = [e["with"]["state"] for e in job.journal() if e.get("note") == "template"]
    assert "ready" in states, job.output
    assert job.go() == 0, job.output
