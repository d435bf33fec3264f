"""The ranks of each agent in a round."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from story import report

from hpclaunch.core.placement.assigning import assign
from hpclaunch.core.protocol.model import Job, Phase, Place

# (node, workers) of each agent in Slurm's order, and the ranks that it gets.
TABLE = {
    "one agent": ([(0, 4)], [(0, 1, 2, 3)]),
    "one worker": ([(0, 1)], [(0,)]),
    "two nodes": ([(0, 2), (1, 2)], [(0, 1), (2, 3)]),
    "unequal nodes": ([(0, 1), (1, 3), (2, 2)], [(0,), (1, 2, 3), (4, 5)]),
    "two agents on a node": ([(0, 1), (0, 2), (1, 1)], [(0,), (1, 2), (3,)]),
    "agents dealt out in turns": ([(0, 1), (1, 2), (0, 2), (1, 1)], [(0,), (3, 4), (1, 2), (5,)]),
}


def parts_of(agents, rng=None):
    """Return the parts of the agents, by index, in a round of all their nodes in Slurm's order."""
    job = Job(tuple(Place(i, node, f"n{node}") for i, (node, _) in enumerate(agents)))
    reports = [
        (i, report(i, Phase.IDLE, nproc=nproc).message) for i, (_, nproc) in enumerate(agents)
    ]
    if rng is not None:
        rng.shuffle(reports)
    groups = sorted({node for node, _ in agents})
    found = assign(job, dict(reports), groups=groups, number=0, restarts=0, checkpoint="")
    return [found[i] for i in range(len(agents))]


def ranks_of(part):
    return tuple(range(part.first_rank, part.first_rank + part.nproc))


@pytest.mark.parametrize(("agents", "expected"), TABLE.values(), ids=TABLE)
def test_table(agents, expected):
    parts = parts_of(agents)
    assert [ranks_of(part) for part in parts] == expected
    assert [part.hosts_store for part in parts] == [0 in ranks for ranks in expected]


def test_local_ranks_of_agents_that_share_a_node():
    first, second, alone = parts_of([(0, 1), (0, 2), (3, 2)])
    assert (first.first_local_rank, first.local_world_size) == (0, 3)
    assert (second.first_local_rank, second.local_world_size) == (1, 3)
    assert (alone.first_local_rank, alone.local_world_size) == (0, 2)
    assert {part.layout for part in (first, second, alone)} == {"3,2"}


def test_groups_are_the_nodes_that_take_part():
    """GROUP_RANK counts without gaps, whichever nodes are missing."""
    parts = parts_of([(1, 1), (4, 1), (4, 1), (6, 1)])
    assert [part.group_rank for part in parts] == [0, 1, 1, 2]
    assert {part.group_world_size for part in parts} == {3}


agents = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 9)), min_size=1, max_size=24)


@given(agents, st.randoms(use_true_random=False))
def test_every_rank_is_held_once_and_those_of_a_node_together(some, rng):
    taken = sorted(zip(parts_of(some, rng), some, strict=True), key=lambda e: e[0].first_rank)
    world = sum(nproc for _, nproc in some)
    holders = [(node, rank) for part, (node, _) in taken for rank in ranks_of(part)]
    assert [rank for _, rank in holders] == list(range(world))
    assert {part.world_size for part, _ in taken} == {world}
    nodes = [node for node, _ in holders]
    assert nodes == sorted(nodes)  # contiguous, and in Slurm's order
    for node in set(nodes):
        here = [part for part, (other, _) in taken if other == node]
        local = [part.first_local_rank + i for part in here for i in range(part.nproc)]
        assert local == list(range(nodes.count(node)))
        assert {part.local_world_size for part in here} == {nodes.count(node)}
