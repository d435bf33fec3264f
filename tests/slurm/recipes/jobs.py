"""Submit a recipe as its users do, and see that its ranks agree."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ..cluster import Cluster, Ended, Job

HERE = Path(__file__).parent
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # all nodes have the same few cores
KILLS_RANK_1 = {"ACCIDENT": "1"}  # see `shared/accident.py`


class Run(Protocol):
    """`submit` of a test: in its own directory of its cluster."""

    def __call__(
        self, script: str, *args: str, options: Sequence[str] = ..., env: Mapping[str, str] = ...
    ) -> Ended: ...


def submit(
    cluster: Cluster,
    directory: Path,
    script: str,
    *args: str,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Ended:
    """`sbatch OPTIONS SCRIPT ARGS` where the recipe's files are; returns once it is over."""
    copy(script, directory)
    output = directory / "job.out"
    command = ["sbatch", "--parsable", "--no-requeue", f"-D{directory}", f"--output={output}"]
    said = cluster.controller.run(
        [*command, *options, Path(script).name, *args],
        env=cluster.environment(directory) | ONE_THREAD | dict(env or {}),
        cwd=directory,
    )
    return Job(cluster, int(said.split(";")[0]), directory, output).wait()


def copy(script: str, directory: Path) -> None:
    for source in (HERE / "shared", (HERE / script).parent):
        shutil.copytree(source, directory, dirs_exist_ok=True)


def weights(ended: Ended, world: int) -> str:
    """What all ranks say about their weights at the end: they are `world`, and of one mind.

    A rank may have come to its end before another was killed, and says it again then.
    """
    assert ended.code == 0, str(ended)
    found = re.findall(r"\brank (\d+) of (\d+): weights (\S+)", ended.output)
    assert {int(rank) for rank, _, _ in found} == {*range(world)}, str(ended)
    assert {int(of) for _, of, _ in found} == {world}, str(ended)
    (total,) = {total for _, _, total in found}
    return total


def learns(ended: Ended, times: int = 1) -> None:
    """The losses of `times` scripts in one process each went down."""
    assert ended.code == 0, str(ended)
    found = re.findall(r"loss from (\S+) to (\S+)", ended.output)
    assert len(found) == times, str(ended)
    assert all(float(last) < float(first) for first, last in found), str(ended)


def rounds(directory: Path) -> int:
    """How many rounds the one launch of a job had."""
    (launch,) = (directory / "hpclaunch-logs").iterdir()
    return len(list(launch.glob("round-*")))
