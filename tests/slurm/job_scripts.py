"""The job scripts of `sbatch/` as they are: run them, and kill one of their workers half-way.

undisturbed = run(cluster, tmp_path / "a", "ddp")
killed = run_with_a_kill(
    cluster, tmp_path / "b", "ddp", after="checkpoints/epoch-3.pt", stop="checkpoints/epoch-4.tmp"
)
assert reached(killed) == reached(undisturbed)
assert rounds(tmp_path / "b") == 2
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .cluster import Cluster, Ended, Job, eventually
from .conftest import ROOT
from .hosts import Process
from .recipes.jobs import ONE_THREAD, rounds

__all__ = ["kill", "reached", "rounds", "run", "run_with_a_kill", "submit", "workers"]


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
    after: str,
    stop: str = "",
    rank: int = 1,
    **more: Any,
) -> Ended:
    """As `run`; the worker of `rank` is killed once the file `after` is there.

    `stop`, if any, is a later file that the training writes with open(): it is a FIFO that nobody
    reads, and so the training comes to a stop there and cannot end before the kill.
    """
    if stop:
        fifo = directory / stop
        fifo.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(fifo, 0o666)
    job = submit(cluster, directory, name, **more)
    try:
        eventually(after, (directory / after).exists, timeout=60)
    except AssertionError as e:
        raise AssertionError(f"{e}\n{job.output}") from None
    if stop:
        fifo.unlink()  # the next round finds nothing there
    kill(job, rank)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    return ended


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


def reached(ended: Ended, what: str = "accuracy") -> float:
    """The number in the one line `accuracy 0.97`, or whatever else the script reaches."""
    found = re.findall(rf"^{what} (\S+)$", ended.output, re.MULTILINE)
    assert len(found) == 1, str(ended)
    return float(found[0])
