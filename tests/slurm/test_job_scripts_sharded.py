"""The job scripts of sharded models, unchanged: all ranks save together, with DCP.

There are no GPUs, so all scripts use CPUs and gloo. A worker is killed during a save, when all
shards exist and rank 0 writes `.metadata`. The result is that of one undisturbed worker.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .cluster import Cluster
from .conftest import AGENT
from .job_scripts import Stop, kill, reached, rounds, run, run_with_a_kill, submit, workers

pytestmark = pytest.mark.frameworks
TWO_EACH = {"PET_NPROC_PER_NODE": "2"}  # workers, as if each node had two GPUs
ROUNDING = 0.01  # sums are in another order
METADATA = "checkpoints/{}/step-{}/.metadata.tmp"
TORN = "skipping checkpoint step-{}: .metadata is missing"


@pytest.mark.parametrize(("name", "below"), [("fsdp_tp", 2.5), ("pipeline", 2.6)])
def test_a_killed_worker_changes_nothing(
    name: str, below: float, cluster: Cluster, tmp_path: Path
) -> None:
    alone = run(cluster, tmp_path / "a", name, nodes=1)
    assert reached(alone, "loss") < below
    stop = METADATA.format(name, 20)
    killed = run_with_a_kill(cluster, tmp_path / "b", name, stop=stop, env=TWO_EACH)
    assert rounds(tmp_path / "b") == 2
    assert TORN.format(20) in killed.output, str(killed)
    assert killed.output.count("resuming after step 10\n") == 1, str(killed)
    assert reached(killed, "loss") == pytest.approx(reached(alone, "loss"), abs=ROUNDING)


def test_the_remaining_ranks_load_all_shards(cluster: Cluster, tmp_path: Path) -> None:
    """First a worker is killed, then a launcher: 2 of 4 ranks remain."""
    alone = run(cluster, tmp_path / "a", "fsdp", nodes=1)
    assert reached(alone, "loss") < 2.6
    stops = [Stop(tmp_path / "b" / METADATA.format("fsdp", step)) for step in (20, 30)]
    with stops[0], stops[1]:
        job = submit(cluster, tmp_path / "b", "fsdp", env=TWO_EACH)
        stops[0].wait_until_reached()
        kill(job, rank=3)
        stops[1].wait_until_reached()
        agent = cluster.process(AGENT, host=workers(job, 3)[0].host)
        agent.kill()
        ended = job.wait()  # with the code of the launcher that was killed
    assert rounds(tmp_path / "b") == 3
    assert TORN.format(20) in ended.output, str(ended)
    assert TORN.format(30) in ended.output, str(ended)
    assert "resuming after step 10 on 4 ranks" in ended.output
    assert "resuming after step 20 on 2 ranks" in ended.output
    assert reached(ended, "loss") == pytest.approx(reached(alone, "loss"), abs=ROUNDING)
