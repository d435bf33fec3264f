"""Checkpoints in memory of simulated nodes, each cluster from a seed, and faults in the rules that
the simulation must find.

Many more seeds: `python tests/sim/staging_replay.py --seeds 10000`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import staging_leader
from staging_nodes import Node
from staging_replay import broken, check

from hpclaunch.core.protocol.values import replace
from hpclaunch.core.staging import choice, copies, replication
from hpclaunch.core.staging.generations import Holding, Manifest
from hpclaunch.core.staging.replication import Replication
from samples import quick_and_exhaustive

BATCHES, SEEDS = 20, 25
QUICK = 1  # batch for `make quick`
ENOUGH = 50  # seeds in which a fault must be found


@pytest.mark.parametrize("batch", quick_and_exhaustive(range(BATCHES), QUICK))
def test_every_law_of_staging_holds(batch: int) -> None:
    for seed in range(batch * SEEDS, (batch + 1) * SEEDS):
        check(seed)


# Faults


class Everything:
    def __contains__(self, _: object) -> bool:
        return True


def show_lowest(holdings: Sequence[Holding]) -> dict[str, Holding]:
    """Return the node of the lowest index, as long as it has not fetched the file."""
    view: dict[str, Holding] = {}
    for holding in sorted(holdings, key=lambda h: -h.node):
        view |= {n: holding for n in holding.files if n not in view or n not in holding.fetched}
    return view


def spare_other_nodes(*given: Any, rule: Any = choice.outdated) -> Any:
    """Remove nothing of a restored name, also from nodes that have not fetched it."""
    *before, _ = given
    return rule(*before, Everything())


def need_decisive(manifest: Manifest, holdings: Sequence[Holding]) -> bool:
    return any(h.has(manifest.decisive_file) for h in holdings)


def compare_nothing(self: Replication, holding: Holding, rule: Any = Replication._gone) -> Any:
    """Let a node that has come back with nothing have deleted all."""
    if (last := self._last.get(holding.node)) is not None:
        self._last[holding.node] = replace(last, restore=holding.restore)
    return rule(self, holding)


def are_of_one_name(here: Manifest, stored: Manifest) -> bool:
    return here.key == stored.key


def all_names(self: Manifest) -> frozenset[str]:
    return frozenset(f.name for f in self.files)


def always(*_: object) -> bool:
    return True


def never(*_: object) -> bool:
    return False


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "mixtures count": (choice, "mixtures", lambda *_: []),
    "the lowest node shows its file": (choice, "shown", show_lowest),
    "old files stay": (choice, "outdated", lambda *_: {}),
    "a node that returned keeps its files": (choice, "outdated", spare_other_nodes),
    "storage is not compared": (staging_leader, "is_outdated", never),
    "storage replaces nothing of its name": (staging_leader, "is_restored", are_of_one_name),
    "the decisive file is enough": (choice, "is_available", need_decisive),
    "one look is enough": (Replication, "_found", property(lambda _: Everything(), never)),
    "a new node has deleted what it lacks": (Replication, "_gone", compare_nothing),
    "what is seen is safe": (replication, "is_safe", always),
    "the safe one is dropped for the next": (replication, "is_kept", never),
    "nothing is dropped": (Replication, "_drop", lambda *_: []),
    "a host is its own buddy": (copies, "buddies", lambda hosts: {n: n for n in hosts}),
    "trackers are deleted, too": (Manifest, "own", property(all_names)),
    "nobody is a buddy": (copies, "buddies", lambda _: {}),
    "any file of the name will do": (Holding, "has", lambda self, f: f.name in self.files),
    "stagers obey former leaders": (Node, "obey", lambda self, order: None),
}


FIRST = 12  # seed: few of the runs before it find anything
# The first seed for a fault that does harm in one of some hundred runs.
FIRST_OF_RARE = {
    "one look is enough": 345,
    "a new node has deleted what it lacks": 690,
    "a node that returned keeps its files": 9767,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_simulation_finds_a_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, instead = FAULTS[fault]
    first = FIRST_OF_RARE.get(fault, FIRST)
    monkeypatch.setattr(where, name, instead, raising=False)
    assert any(map(broken, range(first, first + ENOUGH)))
