"""Fixtures: the GPU, jobs on it, and the check that a test leaves no process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Protocol

import pytest

from slurm.cluster import eventually
from surroundings import SHORT

from .jobs import (
    CONTROL,
    HPCLAUNCH,
    LIMIT,
    Job,
    Machine,
    environment,
    mps_directories,
    mps_processes,
)

HERE = Path(__file__).parent
_ASK_TORCH = """
import json, torch
count = torch._C._cuda_getDeviceCount() if torch.version.cuda else 0  # by CUDA, not by NVML
uuids = [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(count)]
nccl = torch.cuda.nccl.version() if count else ()
found = {"version": torch.__version__, "cuda": torch.version.cuda, "nccl": nccl, "uuids": uuids}
print(json.dumps(found))
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(f"{HERE}/"):  # fast: there are thousands of items
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.timeout(3 * LIMIT))


def ask_torch(**changes: str) -> dict[str, object]:
    """Return what torch reports about GPUs, in a new process with the tests' Python."""
    command = [sys.executable, "-c", _ASK_TORCH]
    done = subprocess.run(
        command, env=environment(**changes), capture_output=True, text=True, timeout=2 * LIMIT
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        _skip(f"no GPU: NVML returns {e}")
    try:
        if not pynvml.nvmlDeviceGetCount():
            _skip("no GPU: NVML finds none")
        torch = ask_torch()
        if not torch["uuids"]:
            _skip(f"torch {torch['version']} of {sys.executable} sees no GPU")
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        uuid, model = (f(handle) for f in (pynvml.nvmlDeviceGetUUID, pynvml.nvmlDeviceGetName))
        yield Machine(pynvml, handle, uuid, model, torch)
    finally:
        pynvml.nvmlShutdown()


def _skip(reason: str) -> NoReturn:
    if "HPCLAUNCH_GPU_REQUIRED" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def real_mps(machine: Machine) -> None:
    """Skip tests that need the real MPS if it is missing."""
    if shutil.which(CONTROL) is None:
        _skip(f"no {CONTROL} in PATH")


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Make a directory for MPS's sockets, which is removed after the test."""
    directory = Path(tempfile.mkdtemp(prefix="gpu-", dir=SHORT))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_left(machine: Machine, temporary: Path) -> Iterator[None]:
    """Require that no daemon, server or directory of MPS and no GPU memory is left."""
    daemons, directories, used = mps_processes(), mps_directories(temporary), machine.used()
    yield
    eventually("no new process of MPS", lambda: mps_processes() <= daemons)
    eventually("release of the GPU's memory", lambda: machine.used() < used + 256)
    assert mps_directories(temporary) <= directories


class Launch(Protocol):
    def __call__(
        self,
        *options: object,
        words: tuple[object, ...] = ...,
        visible: str | None = ...,
        **env: str,
    ) -> Job: ...


@pytest.fixture
def launch(machine: Machine, temporary: Path, nothing_left: None) -> Iterator[Launch]:
    """Start a job, with `words` for `computing.py`; by default, its task has one GPU."""
    jobs: list[Job] = []

    def launch(
        *options: object,
        words: tuple[object, ...] = (),
        visible: str | None = machine.uuid,
        **env: str,
    ) -> Job:
        directory = temporary / f"job-{len(jobs)}"
        directory.mkdir()
        selection = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        here = environment(TMPDIR=str(temporary), **selection, **env)
        jobs.append(Job(directory, here, [*map(str, options)], [*map(str, words)]))
        return jobs[-1]

    yield launch
    for job in jobs:
        job.end()


class Run(Protocol):
    def __call__(self, *words: object, **env: str) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def run(machine: Machine, temporary: Path, nothing_left: None) -> Run:
    """Run a job with one GPU to its end; a hang is an error."""

    def run(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
        here = environment(TMPDIR=str(temporary), CUDA_VISIBLE_DEVICES=machine.uuid, **env)
        command = [HPCLAUNCH, "--log-dir", temporary / "logs", *map(str, words)]
        output = temporary / "output"
        with output.open("w") as out:
            launcher = subprocess.Popen(
                command, cwd=temporary, env=here, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        try:
            code = launcher.wait(LIMIT)
        except subprocess.TimeoutExpired:
            launcher.terminate()
            with suppress(subprocess.TimeoutExpired):
                launcher.wait(15)
            launcher.kill()
            launcher.wait()
            pytest.fail(f"not ended after {LIMIT:.0f} s; its output:\n{output.read_text()}")
        return subprocess.CompletedProcess(command, code, output.read_text())

    return run
