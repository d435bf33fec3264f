"""Submit a recipe as its users do, and check that its ranks agree."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ..cluster import Cluster, Job, JobResult

HERE = Path(__file__).parent
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # all nodes share a few cores
KILLS_RANK_1 = {"ACCIDENT": "1"}  # see `shared/accident.py`


class Run(Protocol):
    """The function `submit`, bound to a test's cluster and directory."""

    def __call__(
        self, script: str, *args: str, options: Sequence[str] = ..., env: Mapping[str, str] = ...
    ) -> JobResult: ...


def submit(
    cluster: Cluster,
    directory: Path,
    script: str,
    *args: str,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> JobResult:
    """Run `sbatch OPTIONS SCRIPT ARGS` in a copy of the recipe's files, and wait for its end."""
    copy(script, directory)
    output = directory / "job.out"
    command = ["sbatch", "--parsable", "--no-requeue", f"-D{directory}", f"--output={output}"]
    job_id = cluster.controller.run(
        [*command, *options, Path(script).name, *args],
        env=cluster.environment(directory) | ONE_THREAD | dict(env or {}),
        cwd=directory,
    )
    return Job(cluster, int(job_id.split(";")[0]), directory, output).wait()


def copy(script: str, directory: Path) -> None:
    for source in (HERE / "shared", (HERE / script).parent):
        shutil.copytree(source, directory, dirs_exist_ok=True)


def weights(ended: JobResult, world: int) -> str:
    """Return the sum of the weights; require that `world` ranks printed it, and all the same.

    A rank that ended before another was killed prints it again in the next round.
    """
    assert ended.code == 0, str(ended)
    found = re.findall(r"\brank (\d+) of (\d+): weights (\S+)", ended.output)
    assert {int(rank) for rank, _, _ in found} == {*range(world)}, str(ended)
    assert {int(of) for _, of, _ in found} == {world}, str(ended)
    (total,) = {total for _, _, total in found}
    return total


def learns(ended: JobResult, times: int = 1) -> None:
    """Require that the losses of so many scripts went down."""
    assert ended.code == 0, str(ended)
    found = re.findall(r"loss from (\S+) to (\S+)", ended.output)
    assert len(found) == times, str(ended)
    assert all(float(last) < float(first) for first, last in found), str(ended)


def rounds(directory: Path) -> int:
    """Return the number of rounds of a job's only launch."""
    (launch,) = (directory / "hpclaunch-logs").iterdir()
    return len(list(launch.glob("round-*")))
