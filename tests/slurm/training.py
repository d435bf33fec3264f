"""Training whose result does not depend on interruptions: `scripts/elastic.py`."""

from __future__ import annotations

import re
from pathlib import Path

from .cluster import Job, JobResult, eventually
from .conftest import SCRIPTS, Launch
from .scripts import sums

ELASTIC = SCRIPTS / "elastic.py"
ENOUGH = "enough"


def expected(epochs: int) -> str:
    """Compute the result as a single worker does."""
    state = 0
    for epoch in range(epochs):
        state = sums.after(state, sums.share(epoch, 0, 1))
    return str(state)


def train(
    launch: Launch, saved: Path, *options: object, visible: Path | None = None, **more: object
) -> Job:
    """Start a training with one worker per node and wait until its third epoch is saved.

    It runs until `finish`. `visible` is the path of `saved` for the tests, if it differs.
    """
    arguments = ("--nproc", 1, "--checkpoint-dir", saved, *options)
    job = launch(*arguments, ELASTIC, "--dir", saved, "--until", ENOUGH, **more)
    wait_for_progress(visible or saved, 3)
    return job


def wait_for_progress(saved: Path, epochs: int) -> None:
    """Wait until so many more epochs are saved."""
    wanted = newest(saved) + epochs
    eventually(f"epoch {wanted}", lambda: newest(saved) >= wanted)


def finish(job: Job, saved: Path) -> JobResult:
    """End the training; require that every epoch was saved once, and that the result is right."""
    (job.directory / ENOUGH).touch()
    ended = job.wait()
    final = re.findall(r"^final (\d+)$", ended.output, re.MULTILINE)
    assert final == [result(saved)], str(ended)
    return ended


def result(saved: Path) -> str:
    """Return the right result; require that every epoch was saved once and in order.

    A worker may have been killed after it saved an epoch and before it recorded that.
    """
    recorded, epochs = [epoch for epoch, _ in writers(saved)], range(newest(saved) + 1)
    assert recorded == [e for e in epochs if e in recorded], recorded
    missing = [e for e in epochs if e not in recorded and not (saved / f"epoch-{e}.pt").exists()]
    assert not missing, missing
    return expected(len(epochs))


def writers(saved: Path) -> list[tuple[int, str]]:
    """Return (epoch, host that saved it) for each save, in order."""
    return [(epoch, host) for epoch, host, _ in saves(saved)]


def saves(saved: Path) -> list[tuple[int, str, int]]:
    """Return (epoch, host that saved it, number of workers) for each save, in order."""
    lines = (saved / "writers").read_text().splitlines()
    return [(int(epoch), host, int(world)) for epoch, host, world in map(str.split, lines)]


def newest(saved: Path) -> int:
    """Return the last epoch that was saved, or -1."""
    return max((int(p.stem.partition("-")[2]) for p in saved.glob("epoch-*.pt")), default=-1)
