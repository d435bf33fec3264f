"""A training with its state on the GPU: the same bits warm and cold, and after a kill."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .conftest import Run
from .jobs import SCRIPTS

TRAINING = SCRIPTS / "training.py"


def results(output: str) -> list[str]:
    """Return the losses and flags of all ranks."""
    return sorted(re.findall(r"rank \d+: .*", output))


@pytest.mark.parametrize("stage", [(), ("--stage",)], ids=["directly", "staged"])
def test_a_worker_is_killed_between_two_steps(
    run: Run, temporary: Path, stage: tuple[str, ...]
) -> None:
    whole = run("--nproc", 1, TRAINING)
    assert whole.returncode == 0, whole.stdout
    saved = temporary / "saved"
    options = ("--nproc", 1, "--max-restarts", 1, "--checkpoint-dir", saved, *stage)
    killed = run(*options, TRAINING, "--save", saved, "--kill-at", 12)
    assert killed.returncode == 0, killed.stdout
    assert "resumes at step 12" in killed.stdout
    assert results(killed.stdout) == results(whole.stdout)
    assert (saved / "step-020.pt").exists()


@pytest.mark.parametrize("words", [(), ("--compile",)], ids=["eager", "compiled"])
def test_warm_and_cold_are_equal(run: Run, words: tuple[str, ...]) -> None:
    warm, cold = (run("--nproc", 1, *how, TRAINING, *words) for how in ((), ("--cold",)))
    assert (warm.returncode, cold.returncode) == (0, 0), warm.stdout + cold.stdout
    assert len(results(warm.stdout)) == 2
    assert "cold start" not in warm.stdout
    assert results(warm.stdout) == results(cold.stdout)
