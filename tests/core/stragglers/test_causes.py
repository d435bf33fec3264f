"""Why a rank is late, in words."""

from __future__ import annotations

import pytest

from hpclaunch.core.protocol.model import NO_RANK, Load, Sample
from hpclaunch.core.stragglers import causes
from hpclaunch.core.stragglers.causes import UNKNOWN, UNSEEN, far_node
from hpclaunch.core.stragglers.lateness import Late

USUAL = {"cpu": 0.7, "queued": 0.01, "throttled": 0.0, "blocked": 0.0}


def samples(**of_rank_2):
    loads = [Load(rank, **USUAL) for rank in range(4)]
    loads[2] = Load(2, **USUAL | of_rank_2)
    return {0: Sample(1.0, loads=tuple(loads[:2])), 1: Sample(1.0, loads=tuple(loads[2:]))}


def cause(samples, node, rank, lateness=0.2, nodes=None):
    nodes = nodes or {agent: agent for agent in samples}
    return causes.cause(samples, nodes, Late(node, rank, lateness * 1.5, 1.5))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"throttled": 0.25}, "the CPU quota of its cgroup stops it for 25% of the time"),
        ({"throttled": 0.25, "queued": 0.3}, "the CPU quota of its cgroup stops it"),
        ({"queued": 0.31}, "it waits for a CPU for 30% of the time: other processes use them"),
        ({"blocked": 0.2}, "it waits for storage for 20% of the time"),
        ({"cpu": 0.95}, "it computes for 25% of the time more: more work, or a slower processor"),
        ({"cpu": 0.95, "queued": 0.08}, "it computes for 25%"),
        ({"cpu": 0.3}, UNKNOWN),
        ({"cpu": 0.72}, UNKNOWN),
        ({}, UNKNOWN),
    ],
)
def test_what_it_does_more_than_others(more, why):
    assert cause(samples(**more), 1, 2).words.startswith(why)


@pytest.mark.parametrize(
    ("more", "lateness", "why"),
    [
        ({"queued": 0.1}, 0.1, "it waits for a CPU for 9%"),
        ({"queued": 0.1}, 0.19, UNKNOWN),
        ({"queued": 0.1}, 0.4, UNKNOWN),
        ({"throttled": 0.25, "queued": 0.41}, 0.5, "the CPU quota of its cgroup stops it for 25%"),
        ({"cpu": 0.8, "queued": 0.1, "blocked": 0.11}, 0.3, "it waits for storage for 11%"),
        ({"cpu": 0.3, "queued": 0.1}, 0.3, UNKNOWN),
    ],
)
def test_what_is_visible_explains_half_of_the_lateness(more, lateness, why):
    """A busy node makes each of its ranks wait for a CPU at times."""
    found = cause(samples(**more), 1, 2, lateness)
    assert found.words.startswith(why)
    assert found.outer == (why != UNKNOWN)


@pytest.mark.parametrize(
    ("clock", "others", "cpu", "why"),
    [
        (1.2, 3.0, 0.95, "its CPU runs at 1.2 GHz, the others' at 3.0 GHz: it is throttled"),
        (2.8, 3.0, 0.95, "it computes for 25%"),
        (0.0, 3.0, 0.95, "it computes for 25%"),  # its node does not report it
        (3.0, 0.0, 0.95, "it computes for 25%"),
        (1.2, 3.0, 0.72, UNKNOWN),  # it is idle, and saves power
    ],
)
def test_a_slow_clock(clock, others, cpu, why):
    found = samples(cpu=cpu, clock=clock)
    found[0] = Sample(1.0, loads=tuple(Load(r, **USUAL, clock=others) for r in range(2)))
    assert cause(found, 1, 2).words.startswith(why)


def test_ranks_that_all_use_the_cpu():
    """Ranks that wait for GPUs use the CPU fully as well."""
    loads = tuple(Load(rank, 1.0, 0.0, 0.0, 0.0) for rank in range(2))
    assert cause({0: Sample(1.0, loads=loads)}, 0, 1).words == UNSEEN


@pytest.mark.parametrize(
    ("more", "own"),
    [
        ({"throttled": 0.25}, True),
        ({"queued": 0.25}, True),
        ({"blocked": 0.25}, True),
        ({"cpu": 1.0}, False),
        ({}, False),
    ],
)
def test_what_makes_it_late_whatever_the_others_do(more, own):
    assert cause(samples(**more), 1, 2).outer == own


def test_a_node_whose_ranks_all_do():
    found = {
        agent: Sample(1.0, loads=tuple(Load(2 * agent + i, **usual) for i in range(2)))
        for agent, usual in enumerate((USUAL, USUAL | {"queued": 0.4}, USUAL))
    }
    assert "waits for a CPU for 39%" in cause(found, 1, NO_RANK).words


def test_a_node_with_an_agent_for_each_rank():
    found = {
        rank: Sample(1.0, loads=(Load(rank, **USUAL | {"queued": 0.4 * (rank > 1)}),))
        for rank in range(4)
    }
    of = {rank: rank // 2 for rank in found}
    assert "waits for a CPU for 40%" in cause(found, 1, NO_RANK, nodes=of).words


def test_ranks_of_which_nothing_is_known():
    assert cause({0: Sample(1.0), 1: Sample(1.0)}, 1, 2).words == ""
    assert cause({0: Sample(1.0), 1: samples()[1]}, 0, 0).words == ""


def between(**delays):
    """Return the delays between pairs of nodes: a_b is the delay from a to b."""
    ways = {}
    for pair, delay in delays.items():
        one, other = pair.split("_")
        ways.setdefault(one, {})[other] = delay
        ways.setdefault(other, {})
    return ways


NEAR, FAR = 0.0002, 0.02


@pytest.mark.parametrize(
    ("ways", "far"),
    [
        (between(a_b=FAR, b_c=FAR, c_a=NEAR), "b"),
        (between(a_b=FAR, b_a=FAR, b_c=FAR, c_b=FAR, a_c=NEAR, c_a=NEAR), "b"),
        (between(a_b=FAR, b_c=NEAR, c_a=NEAR), None),  # one way only, by chance
        (between(a_b=0.0008, b_c=0.0008, c_a=0.0001), None),  # it is not much
        (between(a_b=FAR, b_c=FAR, c_a=FAR), None),
        (between(a_b=FAR, b_a=FAR), None),  # either end may be at fault
        (between(a_b=NEAR, b_c=NEAR, c_d=0.05, d_a=0.04), "d"),
        ({}, None),
        ({"a": {}}, None),
        ({"a": {"b2": FAR}, "b": {"c2": FAR}, "c": {"a2": NEAR}}, None),  # other addresses
    ],
)
def test_a_node_that_is_far_from_all_others(ways, far):
    found = far_node(ways)
    assert (None if found is None else found.address) == far


def test_how_far_it_is():
    assert far_node(between(a_b=FAR, b_c=FAR, c_a=NEAR)).account == (
        "the network: its messages take 20.0 ms to other nodes and back (usual: 0.2 ms)"
    )
