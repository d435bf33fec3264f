"""The job scripts of models that are in parts, as they are: all ranks save together, with DCP.

The nodes have GPUs that are none, so all take CPUs and gloo. The training comes to a stop in the
midst of a save (see `run_with_a_kill`): the shards are there, `.metadata` is not.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .cluster import Cluster, eventually
from .conftest import AGENT
from .job_scripts import kill, reached, rounds, run, run_with_a_kill, submit, workers

TWO_EACH = ["--gpus-per-node=2"]  # workers: the nodes share a few cores
SHARD, SEAL = "checkpoints/step-{}/__{}_0.distcp", "checkpoints/step-{}/.metadata.tmp"
TORN = "passing over checkpoint step-{}: nothing says that it is complete"


@pytest.mark.parametrize(("name", "below"), [("fsdp_tp", 2.5), ("pipeline", 2.6)])
def test_a_killed_worker_changes_nothing(
    name: str, below: float, cluster: Cluster, tmp_path: Path
) -> None:
    undisturbed = run(cluster, tmp_path / "a", name, options=TWO_EACH)
    assert reached(undisturbed, "loss") < below
    killed = run_with_a_kill(
        cluster,
        tmp_path / "b",
        name,
        after=SHARD.format(30, 3),
        stop=SEAL.format(30),
        options=TWO_EACH,
    )
    assert rounds(tmp_path / "b") == 2
    assert TORN.format(30) in killed.output, str(killed)
    assert killed.output.count("resuming after step 20\n") == 1, str(killed)
    assert reached(killed, "loss") == reached(undisturbed, "loss")


def test_shards_are_taken_over_by_the_ranks_that_are_left(cluster: Cluster, tmp_path: Path) -> None:
    """First a worker is killed, then a launcher: of 4 ranks 2 are left."""
    undisturbed = run(cluster, tmp_path / "a", "fsdp", options=TWO_EACH)
    assert reached(undisturbed, "loss") < 2.6
    stops = [tmp_path / "b" / SEAL.format(step) for step in (20, 30)]
    for stop in stops:
        stop.parent.mkdir(parents=True)
        os.mkfifo(stop)
    job = submit(cluster, tmp_path / "b", "fsdp", options=TWO_EACH)

    def saves(step: int) -> None:
        shard = tmp_path / "b" / SHARD.format(step, 3)
        eventually(str(shard), shard.exists, timeout=60)
        stops.pop(0).unlink()

    saves(20)
    kill(job, rank=3)
    saves(30)
    (agent,) = cluster.processes(AGENT, host=workers(job, 3)[0].host)
    agent.kill()
    ended = job.wait()  # with the code of the launcher that was killed
    assert rounds(tmp_path / "b") == 3
    assert TORN.format(20) in ended.output, str(ended)
    assert TORN.format(30) in ended.output, str(ended)
    assert "resuming after step 10 on 4 ranks" in ended.output
    assert "resuming after step 20 on 2 ranks" in ended.output
    close = pytest.approx(reached(undisturbed, "loss"), abs=0.01)  # sums are rounded otherwise
    assert reached(ended, "loss") == close
