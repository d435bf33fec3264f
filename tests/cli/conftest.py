"""Fixtures that the tests of this folder share."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from forks_of_torch import Torchruns
from launching import family, started, until, without_load

from hpclaunch.cli import main
from hpclaunch.system.logs import log_client
from hpclaunch.system.processes import fork_server_client
from living import living
from surroundings import LIGHT_TORCH


class Unused:
    """A helper of the agent that a mistake makes unnecessary."""

    def __init__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def in_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Return `launching.hpclaunch` without a process, for what ends before an agent begins."""
    monkeypatch.setattr(fork_server_client, "ForkServerClient", Unused)
    monkeypatch.setattr(log_client, "LogServiceClient", Unused)
    monkeypatch.setattr(sys, "path", [*sys.path])  # main puts it in another order

    def run(*args: object, cwd: str, env: dict[str, str] | None = None) -> Any:
        monkeypatch.chdir(cwd)
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        try:
            code = main([str(word) for word in args])
        except SystemExit as e:  # after --help and the like
            code = int(e.code or 0)
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(args, code, out, without_load(err))

    return run


@pytest.fixture
def light_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all launches find the light torch. The template has torch for every script that may use
    it, such as one that imports another module of the user, or a program that is not Python."""
    monkeypatch.setenv("PYTHONPATH", LIGHT_TORCH)


@pytest.fixture(scope="module")
def torchruns(starts: None) -> Iterator[Torchruns]:
    """Return the process that runs torchrun for all tests of a file."""
    torchruns = Torchruns()
    yield torchruns
    torchruns.end()


@pytest.fixture(autouse=True)
def _no_launch_is_left() -> Iterator[None]:
    """Kill launches that a test has left running, with all their processes."""
    started.clear()
    yield
    for process, _ in started:
        if process.poll() is None:
            with process:
                pids = family(process)
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            until(lambda pids=pids: not living(pids))
    started.clear()
