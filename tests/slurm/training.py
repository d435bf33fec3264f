"""Training that comes to the same result however it is interrupted: `scripts/elastic.py`."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from .cluster import Ended, Job, eventually
from .conftest import SCRIPTS, Launch

ELASTIC = SCRIPTS / "elastic.py"
EPOCHS = 16


def expected(epochs: int = EPOCHS) -> str:
    """Computed as the workers do, but by one."""
    spec = importlib.util.spec_from_file_location("elastic", ELASTIC)
    assert spec is not None
    assert spec.loader is not None
    elastic = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elastic)
    state = 0
    for epoch in range(epochs):
        state = elastic.after(state, elastic.share(epoch, 0, 1))
    return str(state)


def train(
    launch: Launch, saved: Path, *options: object, there: Path | None = None, **more: object
) -> Job:
    """One worker on each node; returns when the third epoch is saved. `there` is where these tests
    see what is saved.
    """
    arguments = ("--nproc", 1, "--checkpoint-dir", saved, *options)
    job = launch(*arguments, ELASTIC, "--dir", saved, "--epochs", EPOCHS, **more)
    progress(job, 2, there)
    return job


def progress(job: Job, epoch: int, there: Path | None = None) -> None:
    """Wait until it is saved."""
    file = (there or job.directory / "saved") / f"epoch-{epoch}.pt"
    try:
        eventually(f"epoch {epoch}", file.exists, timeout=30)
    except AssertionError as e:
        raise AssertionError(f"{e}\n{job.output}") from None


def writers(saved: Path) -> list[tuple[int, str]]:
    """Every epoch that was saved and the host that did, in the order of the saving."""
    return [(epoch, host) for epoch, host, _ in saves(saved)]


def saves(saved: Path) -> list[tuple[int, str, int]]:
    """The same, with the number of workers."""
    lines = (saved / "writers").read_text().splitlines()
    return [(int(epoch), host, int(world)) for epoch, host, world in map(str.split, lines)]


def newest(saved: Path) -> int:
    """The last epoch that was saved, -1 for none."""
    return max((int(p.stem.partition("-")[2]) for p in saved.glob("epoch-*.pt")), default=-1)


def assert_right(ended: Ended, epochs: int = EPOCHS) -> None:
    said = re.findall(r"^final (\d+)$", ended.output, re.MULTILINE)
    assert said == [expected(epochs)], str(ended)
