"""Health checks of a healthy GPU: they can read it and find no fault."""

from __future__ import annotations

import select
import subprocess

from hpclaunch.core.health.findings import failed
from hpclaunch.system.gpus import inventory
from hpclaunch.system.gpus.gpu_watcher_client import GpuWatcherClient

from .conftest import Launch
from .jobs import HPCLAUNCH, LIMIT, Machine, environment


def test_the_watcher_reads_the_real_driver(machine: Machine) -> None:
    found = inventory.survey({"CUDA_VISIBLE_DEVICES": machine.uuid}, machine.nvml).gpus
    watcher = GpuWatcherClient(found)
    try:
        watcher.check(0)
        assert select.select([watcher], [], [], LIMIT)[0]
        reports = list(watcher.reports())
    finally:
        watcher.close()
    assert [report.round for report in reports] == [0]
    assert not failed(reports[0].findings), reports
    assert not watcher.lost


def test_no_fault_is_found(launch: Launch) -> None:
    """No fault is found at the start or at the beginning of a round."""
    job = launch("--nproc", 1, "--health", "on")
    (state,) = job.states(1)
    assert "cordoned" not in job.output
    assert job.go() == 0, job.output
    assert state["product"] == 64**3


def test_doctor(machine: Machine) -> None:
    done = subprocess.run(
        [HPCLAUNCH, "doctor"], env=environment(), capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stdout
    assert machine.model in done.stdout


def test_a_gpu_is_measured(machine: Machine) -> None:
    done = subprocess.run(
        [HPCLAUNCH, "doctor", "--measure"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "TFLOP/s" in done.stdout
    assert machine.model in done.stdout
