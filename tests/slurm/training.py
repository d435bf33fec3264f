"""Training that comes to the same result however it is interrupted: `scripts/elastic.py`."""

from __future__ import annotations

import re
from pathlib import Path

from .cluster import Ended, Job, eventually
from .conftest import SCRIPTS, Launch
from .scripts import sums

ELASTIC = SCRIPTS / "elastic.py"
ENOUGH = "enough"


def expected(epochs: int) -> str:
    """Compute it as the workers do, but as one."""
    state = 0
    for epoch in range(epochs):
        state = sums.after(state, sums.share(epoch, 0, 1))
    return str(state)


def train(
    launch: Launch, saved: Path, *options: object, there: Path | None = None, **more: object
) -> Job:
    """One worker on each node, until `finish`; returns when the third epoch is saved. `there` is
    where these tests see what is saved.
    """
    arguments = ("--nproc", 1, "--checkpoint-dir", saved, *options)
    job = launch(*arguments, ELASTIC, "--dir", saved, "--until", ENOUGH, **more)
    progress(there or saved, 3)
    return job


def progress(saved: Path, epochs: int) -> None:
    """Wait until so many more are saved."""
    wanted = newest(saved) + epochs
    eventually(f"epoch {wanted}", lambda: newest(saved) >= wanted)


def finish(job: Job, saved: Path) -> Ended:
    """End the training: every epoch was saved once, and the result is right."""
    (job.directory / ENOUGH).touch()
    ended = job.wait()
    said = re.findall(r"^final (\d+)$", ended.output, re.MULTILINE)
    assert said == [result(saved)], str(ended)
    return ended


def result(saved: Path) -> str:
    """Return the result of a training that has saved this, every epoch once and in order.

    A worker may have been killed when it had saved an epoch, and not noted that yet.
    """
    noted, epochs = [epoch for epoch, _ in writers(saved)], range(newest(saved) + 1)
    assert noted == [e for e in epochs if e in noted], noted
    missing = [e for e in epochs if e not in noted and not (saved / f"epoch-{e}.pt").exists()]
    assert not missing, missing
    return expected(len(epochs))


def writers(saved: Path) -> list[tuple[int, str]]:
    """Return every epoch that was saved and the host that did, in the order of the saving."""
    return [(epoch, host) for epoch, host, _ in saves(saved)]


def saves(saved: Path) -> list[tuple[int, str, int]]:
    """Return the same, with the number of workers."""
    lines = (saved / "writers").read_text().splitlines()
    return [(int(epoch), host, int(world)) for epoch, host, world in map(str.split, lines)]


def newest(saved: Path) -> int:
    """Return the last epoch that was saved, -1 for none."""
    return max((int(p.stem.partition("-")[2]) for p in saved.glob("epoch-*.pt")), default=-1)
