"""Checks on a GPU that is well: they read it, and find nothing that sets it aside."""

from __future__ import annotations

import select
import subprocess

import pytest

from hpclaunch.core.health.findings import failed
from hpclaunch.system.gpus import inventory
from hpclaunch.system.gpus.gpu_watcher_client import GpuWatcherClient

from .conftest import Launch, Run
from .jobs import HPCLAUNCH, LIMIT, SCRIPTS, Machine, environment


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
    """Not at the start, nor as a round begins anew."""
    job = launch("--nproc", 1, "--health", "on")
    (told,) = job.told(1)
    assert "cordoned" not in job.output
    assert job.go() == 0, job.output
    assert told["product"] == 64**3


def test_doctor(machine: Machine) -> None:
    done = subprocess.run(
        [HPCLAUNCH, "doctor"], env=environment(), capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stdout
    assert machine.model in done.stdout


@pytest.mark.parametrize("workers", [1, 2])
def test_preflight(run: Run, workers: int) -> None:
    """A GPU that is shared is measured as well."""
    options = ("--nproc", workers, "--preflight", "--shared-backend", "gloo")
    ended = run(*options, SCRIPTS / "nccl.py")
    assert ended.returncode == 0, ended.stdout
    assert "TFLOP/s" in ended.stdout
    assert ended.stdout.count("sums to") == workers
