"""From the roster to ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpclaunch.core.placement.ranks import seats
from hpclaunch.core.protocol.model import Place

# (node, workers) of each agent in Slurm's order, and the ranks that it gets.
TABLE = {
    "one agent": ([(0, 4)], [(0, 1, 2, 3)]),
    "one worker": ([(0, 1)], [(0,)]),
    "two nodes": ([(0, 2), (1, 2)], [(0, 1), (2, 3)]),
    "unequal nodes": ([(0, 1), (1, 3), (2, 2)], [(0,), (1, 2, 3), (4, 5)]),
    "two agents on a node": ([(0, 1), (0, 2), (1, 1)], [(0,), (1, 2), (3,)]),
    "agents dealt out in turns": ([(0, 1), (1, 2), (0, 2), (1, 1)], [(0,), (3, 4), (1, 2), (5,)]),
}


def roster(agents):
    return [(Place(i, node, f"n{node}"), nproc) for i, (node, nproc) in enumerate(agents)]


def ranks_of(seat):
    return tuple(range(seat.first_rank, seat.first_rank + seat.nproc))


@pytest.mark.parametrize(("agents", "expected"), TABLE.values(), ids=TABLE)
def test_table(agents, expected):
    by_agent = sorted(seats(roster(agents)), key=lambda seat: seat.place.index)
    assert [ranks_of(seat) for seat in by_agent] == expected


def test_local_ranks_of_agents_that_share_a_node():
    first, second, alone = seats(roster([(0, 1), (0, 2), (3, 2)]))
    assert (first.first_local_rank, first.local_world_size) == (0, 3)
    assert (second.first_local_rank, second.local_world_size) == (1, 3)
    assert (alone.first_local_rank, alone.local_world_size) == (0, 2)


def test_groups_are_the_nodes_that_take_part():
    """GROUP_RANK counts without gaps, whichever nodes are missing."""
    taken = seats(roster([(1, 1), (4, 1), (4, 1), (6, 1)]))
    assert [seat.group_rank for seat in taken] == [0, 1, 1, 2]
    assert {seat.group_world_size for seat in taken} == {3}


agents = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 9)), min_size=1, max_size=24)


@given(agents, st.randoms(use_true_random=False))
def test_every_rank_is_held_once_and_those_of_a_node_together(some, rng):
    entries = roster(some)
    rng.shuffle(entries)
    taken = seats(entries)
    world = sum(nproc for _, nproc in entries)
    holders = [(seat.place.node, rank) for seat in taken for rank in ranks_of(seat)]
    assert [rank for _, rank in holders] == list(range(world))
    nodes = [node for node, _ in holders]
    assert nodes == sorted(nodes)  # contiguous, and in Slurm's order
    for node in set(nodes):
        here = [seat for seat in taken if seat.place.node == node]
        local = [seat.first_local_rank + i for seat in here for i in range(seat.nproc)]
        assert local == list(range(nodes.count(node)))
        assert {seat.local_world_size for seat in here} == {nodes.count(node)}
