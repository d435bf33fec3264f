"""Whole clusters, each from a seed, and the invariants after every step.

A failure names its seed and the command that shows what happened. Many more seeds:
`python tests/sim/replay.py --seeds 100000`.
"""

from __future__ import annotations

import pytest
from cluster_sim import check, replay

BATCHES, SEEDS = 50, 40

# Runs that once broke a law, and what was wrong then.
REGRESSIONS = {
    15: "a connection that was made again at once counted as closed until the next beat",
    68: "a round began while an agent's fork server was being replaced",
    96: "trouble on one agent let the others leave while workers ran",
    144: "workers that had ended well were lost with their fork server, and nobody had failed",
    157: "an agent without a head woke up without end while its workers were stopped",
    259: "a worker that hung after it had saved was waited for until the end of the grace",
    285: "after a pause of the head, the first message was the occasion to give up the second",
    303: "the head never told itself the end if its own fork server was the slowest",
    371: "an agent whose workers survived SIGKILL never left",
    2398: "after a pause, a worker's exit was the occasion to give up a head that was heard",
}


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_law_holds(batch):
    for seed in range(batch * SEEDS, (batch + 1) * SEEDS):
        check(seed)


@pytest.mark.parametrize("seed", REGRESSIONS, ids=REGRESSIONS.get)
def test_regression(seed):
    check(seed)


def test_a_seed_is_one_run():
    """The same to the last message: else a failure could not be replayed."""
    (first, failure), (second, _) = replay(29), replay(29)
    assert failure is None
    assert first.transcript == second.transcript
