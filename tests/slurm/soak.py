"""Thirty random faults in one job, which must reach the right result: `make soak`.

HPCLAUNCH_SOAK_SEED selects the faults; the seed of a run is printed at its start. This is not among
the ordinary tests, since it takes several minutes. There is one fault at a time, and the next one
begins when the training has made progress; `bench/chaos.py` does not wait for that.
"""
# ruff: noqa: T201 -- it prints its progress

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster
from .conftest import cluster_of
from .endless import Endless
from .faults import Faults
from .training import newest, writers

NODES = 6
FAULTS = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of(NODES) as it:
        yield it


@pytest.mark.timeout(3600)
def test_thirty_faults(cluster: Cluster, tmp_path: Path) -> None:
    seed = int(os.environ.get("HPCLAUNCH_SOAK_SEED", random.randrange(10000)))
    print(f"\nHPCLAUNCH_SOAK_SEED={seed}")
    training = Endless(cluster, tmp_path)
    faults = Faults(training, random.Random(seed))
    most = 0
    for number in range(FAULTS):
        training.wait_for_progress(2)
        before = newest(training.saved)
        fault = faults.draw()
        print(f"{number + 1:3}. after epoch {before}: {fault.words}", flush=True)
        with fault.during:
            time.sleep(fault.lasts)
        healed = time.monotonic()
        training.wait_for_progress(1)
        most = max(most, round(time.monotonic() - healed))
    training.wait_for_all_nodes()
    ended = training.end()
    assert not training.problems(ended), f"{training.problems(ended)}: {ended}"
    hosts = sorted({host for _, host in writers(training.saved)})
    print(f"the result is right, every epoch was saved once, by {hosts}")
    print(f"at most {most} s from the end of a fault to the next checkpoint")
