"""Thirty random faults in one job, which comes to the right result: `make soak`.

HPCLAUNCH_SOAK_SEED chooses the faults; the seed of a run is printed at its beginning. Not one of
the ordinary tests, since it takes several minutes. One fault at a time, and the next one when the
training goes on; `bench/chaos.py` does not wait for that.
"""
# ruff: noqa: T201 -- it tells what it does

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
        training.progress(2)
        before = newest(training.saved)
        fault = faults.draw()
        print(f"{number + 1:3}. after epoch {before}: {fault.words}", flush=True)
        with fault.during:
            time.sleep(fault.lasts)
        went = time.monotonic()
        training.progress(1)
        most = max(most, round(time.monotonic() - went))
    training.all_take_part()
    ended = training.end()
    assert not training.wrong(ended), f"{training.wrong(ended)}: {ended}"
    hosts = sorted({host for _, host in writers(training.saved)})
    print(f"the right result, every epoch saved once, by {hosts}")
    print(f"{most} s at most from the end of a fault to the next checkpoint")
