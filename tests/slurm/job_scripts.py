"""Run the job scripts of `sbatch/` unchanged, and kill one of their workers half-way.

undisturbed = run(cluster, tmp_path / "a", "ddp")
killed = run_with_a_kill(cluster, tmp_path / "b", "ddp", stop="checkpoints/ddp/epoch-4.tmp")
require_same_epoch(killed, epoch=4)
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

from .cluster import Cluster, Job, JobResult, eventually
from .conftest import ROOT
from .hosts import Process
from .recipes.jobs import ONE_THREAD, rounds

__all__ = [
    "Stop",
    "kill",
    "reached",
    "require_same_epoch",
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
    """Submit `sbatch/NAME.sbatch` in `directory`, with a copy of `workers/`, and more `options`."""
    ignored = shutil.ignore_patterns("build", "__pycache__")
    shutil.copytree(ROOT / "workers", directory / "workers", ignore=ignored, dirs_exist_ok=True)
    body = (ROOT / "sbatch" / f"{name}.sbatch").read_text()
    return cluster.sbatch(
        body, directory=directory, nodes=nodes, options=options, env=ONE_THREAD | dict(env or {})
    )


def run(cluster: Cluster, directory: Path, name: str, **more: Any) -> JobResult:
    """Submit a job script, wait for its end, and require exit code 0."""
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
) -> JobResult:
    """Run a job script; kill the worker of `rank` at a `Stop`, or once the file `after` exists.

    Both are paths in `directory`. Without a stop, the training may end before the kill.
    """
    with Stop(directory / stop) if stop else nullcontext() as stopping:
        job = submit(cluster, directory, name, **more)
        if after:
            eventually(after, (directory / after).exists)
        if stopping:
            stopping.wait_until_reached()
        kill(job, rank)
        ended = job.wait()
    assert ended.code == 0, str(ended)
    return ended


class Stop:
    """A file at which a training stops, since it cannot write to it.

    It is a full FIFO that nobody reads. Use it as a context until the worker that writes is dead.
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

    def wait_until_reached(self) -> None:
        """Wait until the training has opened the file, then remove its name."""
        eventually(f"a writer of {self._path.name}", self._has_a_writer)
        self._path.unlink()

    def _has_a_writer(self) -> bool:
        poll = select.poll()
        poll.register(self._reader, 0)  # POLLHUP is reported in any case
        return not poll.poll(0)


def kill(job: Job, rank: int) -> None:
    """Kill the worker of this rank and its child processes, in the newest round."""
    found = workers(job, rank)
    assert found, f"no worker of rank {rank}:\n{job.output}"
    for process in found:
        process.kill()


def workers(job: Job, rank: int) -> list[Process]:
    """Return the processes of this rank: those that write to its file, and, since a program writes
    to a pipe, those that were started with this RANK.
    """
    return [p for p in job.cluster.processes() if _is_of(p.pid, rank)]


def _is_of(pid: int, rank: int) -> bool:
    process = Path(f"/proc/{pid}")
    try:
        to_file = os.readlink(process / "fd" / "1").endswith(f"/rank-{rank}.out")
        return to_file or f"RANK={rank}".encode() in (process / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended


def require_same_epoch(ended: JobResult, epoch: int) -> None:
    """Require that this epoch ran before and after the kill with the same loss and accuracy."""
    once, again = re.findall(rf"^epoch {epoch}: .*$", ended.output, re.MULTILINE)
    assert once == again, str(ended)


def reached(ended: JobResult, what: str = "accuracy") -> float:
    """Return the number in the only line `accuracy 0.97`, or `WHAT NUMBER`."""
    found = re.findall(rf"^{what} (\S+)$", ended.output, re.MULTILINE)
    assert len(found) == 1, str(ended)
    return float(found[0])
