"""Checkpoints in memory of simulated nodes, each cluster from a seed, and faults in the rules that
the simulation must find.

Many more seeds: `python tests/sim/staging_replay.py --seeds 10000`.
"""

from __future__ import annotations

import pytest
from staging_replay import check

from samples import quick_and_exhaustive

BATCHES, SEEDS = 10, 40
QUICK = 1  # batch for `make quick`


@pytest.mark.parametrize("batch", quick_and_exhaustive(range(BATCHES), QUICK))
def test_every_law_of_staging_holds(batch):
    for seed in range(batch * SEEDS, (batch + 1) * SEEDS):
        check(seed)
