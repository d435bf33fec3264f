"""The job scripts of `sbatch/` as they are: run them, and kill one of their workers half-way.

undisturbed = run(cluster, tmp_path / "a", "ddp")
killed = run_with_a_kill(cluster, tmp_path / "b", "ddp", stop="checkpoints/ddp/epoch-4.tmp")
came_out_alike(killed, epoch=4)
assert reached(killed) == reached(undisturbed)
assert rounds(tmp_path / "b") == 2
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from .cluster import Cluster, Ended, Job, eventually
from .conftest import ROOT
from .hosts import Process
from .recipes.jobs import ONE_THREAD, rounds

__all__ = [
    "Stop",
    "came_out_alike",
    "kill",
    "reached",
    "rounds",
    "run",
    "run_with_a_kill",
    "submit",
    "workers",
]
PAGE = 4096


def submit(
    cluster: Cluster,
    directory: Path,
    name: str,
    *,
    nodes: int = 2,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Job:
    """`sbatch/NAME.sbatch` in `directory`, where `workers/` is too; `options` are sbatch's."""
    ignored = shutil.ignore_patterns("build", "__pycache__")
    shutil.copytree(ROOT / "workers", directory / "workers", ignore=ignored, dirs_exist_ok=True)
    body = (ROOT / "sbatch" / f"{name}.sbatch").read_text()
    return cluster.sbatch(
        body, directory=directory, nodes=nodes, options=options, env=ONE_THREAD | dict(env or {})
    )


def run(cluster: Cluster, directory: Path, name: str, **more: Any) -> Ended:
    """As `submit`; it ended well."""
    ended = submit(cluster, directory, name, **more).wait()
    assert ended.code == 0, str(ended)
    return ended


def run_with_a_kill(
    cluster: Cluster,
    directory: Path,
    name: str,
    *,
    after: str = "",
    stop: str = "",
    rank: int = 1,
    **more: Any,
) -> Ended:
    """As `run`; the worker of `rank` is killed at a `Stop`, or once the file `after` is there.

    Both are paths in `directory`. Without a stop the training may be over before the kill.
    """
    with Stop(directory / stop) if stop else nullcontext() as stopping:
        job = submit(cluster, directory, name, **more)
        if after:
            eventually(after, (directory / after).exists, timeout=90)
        if stopping:
            stopping.reached(job)
        kill(job, rank)
        ended = job.wait()
    assert ended.code == 0, str(ended)
    return ended


class Stop:
    """A file that a training opens, cannot write a byte to, and so waits at.

    It is a FIFO, full, whose reader, this one, takes nothing out. Use it as a context, until the
    worker that writes is dead.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
        path.chmod(0o666)
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(self._reader, fcntl.F_SETPIPE_SZ, PAGE)
        with path.open("wb", buffering=0) as filler:
            filler.write(bytes(PAGE))

    def __enter__(self) -> Stop:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._reader)

    def reached(self, job: Job, timeout: float = 240.0) -> None:
        """Wait until the training is there. Whoever comes next finds no such file."""
        eventually(f"a writer of {self._path.name}", self._has_a_writer, timeout)
        self._path.unlink()

    def _has_a_writer(self) -> bool:
        poll = select.poll()
        poll.register(self._reader, 0)  # it tells when the last writer hung up, all the same
        return not poll.poll(0)


def kill(job: Job, rank: int) -> None:
    """SIGKILL for the worker of this rank and for what it has started, in the newest round."""
    found = workers(job, rank)
    assert found, f"no worker of rank {rank}:\n{job.output}"
    for process in found:
        process.kill()


def workers(job: Job, rank: int) -> list[Process]:
    """The living processes whose standard output is the file of this rank."""
    return [p for p in job.cluster.processes() if _writes_to(p.pid).endswith(f"/rank-{rank}.out")]


def _writes_to(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except FileNotFoundError:
        return ""  # it ended meanwhile


def came_out_alike(ended: Ended, epoch: int) -> None:
    """It was trained twice, before the kill and again after it, with the same loss and accuracy."""
    once, again = re.findall(rf"^epoch {epoch}: .*$", ended.output, re.MULTILINE)
    assert once == again, str(ended)


def reached(ended: Ended, what: str = "accuracy") -> float:
    """The number in the one line `accuracy 0.97`, or whatever else the script reaches."""
    found = re.findall(rf"^{what} (\S+)$", ended.output, re.MULTILINE)
    assert len(found) == 1, str(ended)
    return float(found[0])
