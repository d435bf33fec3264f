"""Ranks that hang, or are late, in work on the GPU are found and named. `pytest -rP` shows the
launcher's output and the evidence."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from .conftest import Run
from .jobs import SCRIPTS

TRAINING = SCRIPTS / "training.py"


@pytest.mark.parametrize(
    ("workers", "how", "backend"),
    [
        (2, "sleep", "gloo"),
        (1, "collective", "nccl"),
        (1, "kernel", "gloo"),
    ],
)
def test_a_hang_is_found(run: Run, temporary: Path, workers: int, how: str, backend: str) -> None:
    began = time.monotonic()
    options = ("--nproc", workers, "--mps", "off", "--hang-timeout", 3, "--max-restarts", 1)
    ended = run(*options, TRAINING, "--hang", how, "--backend", backend)
    print(f"{time.monotonic() - began:.1f} s", ended.stdout, sep="\n")
    for evidence in sorted(temporary.glob("logs/*/evidence/*")):
        print(f"---- {evidence.name}", evidence.read_text(errors="replace")[:4000], sep="\n")
    assert ended.returncode == 0, ended.stdout
    assert f"hangs: {how}" in ended.stdout
    assert re.search(rf"rank {workers - 1} on \S+ hung; restart", ended.stdout)
    assert len(re.findall(r"rank \d+: loss", ended.stdout)) == workers


def test_a_straggler(run: Run) -> None:
    """A straggler is named after two samples of the pace: 21 s after the first step or later."""
    options = ("--nproc", 2, "--mps", "off")
    words = ("--steps", 450, "--late", 0.05, "--pause", 0.005)
    ended = run(*options, TRAINING, *words)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout
    assert "is a straggler" in ended.stdout
