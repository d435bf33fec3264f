"""The rules of quorums: tables, and every case of a few agents."""

from __future__ import annotations

import math
from itertools import combinations, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpclaunch.core.consensus import quorum
from hpclaunch.core.protocol.configuration import Configuration, voters
from hpclaunch.core.protocol.ranges import parsed, written
from samples import quick_and_exhaustive

FEW = 5


def is_quorum(configuration, votes, dead=()):
    """The vote leases of the `dead` are over."""
    return quorum.is_quorum(configuration, votes, dict.fromkeys(dead, 0.0), 0.0)


def replaces_old(configuration, have_it):
    return quorum.replaces_old(configuration, have_it, {}, 0.0)


def supported_since(configuration, lease_start, me, dead=()):
    return quorum.supported_since(configuration, lease_start, me, dict.fromkeys(dead, 0.0), 0.0)


def a_configuration(agents, head=0, old=None, old_head=0):
    return Configuration(1, voters(head, agents), None if old is None else voters(old_head, old))


def subsets(agents):
    return [set(some) for n in range(len(agents) + 1) for some in combinations(agents, n)]


def configurations(n):
    """Return all configurations that agents 0..n-1 can be on, settled or not."""
    sides = [voters(head, some) for some in subsets(range(n)) for head in some]
    return [Configuration(1, new, old) for new in sides for old in [None, *sides]]


# Agents 2 and 3 have begun a round; of the four that there were before, 0 was the head.
BOTH = a_configuration({2, 3}, 2, old=range(4))

# Many agents in a few words


@pytest.mark.parametrize(
    ("agents", "text"),
    [([4], "4"), ([0, 1, 2, 3], "0-3"), ([7, 0, 3, 1, 2], "0-3,7"), ([1, 3, 5, 6], "1,3,5-6")],
)
def test_ranges(agents, text):
    assert written(agents) == text


@given(st.sets(st.integers(0, 5000), min_size=1))
def test_what_is_written_is_read(agents):
    assert parsed(written(agents)) == agents


# Who may have a new head: the voters, the head until now, the votes, the dead.
TABLE = {
    "alone": (1, 0, {0}, (), True),
    "nobody": (1, 0, set(), (), False),
    "more than half": (3, 0, {1, 2}, (), True),
    "less than half": (3, 0, {0}, (), False),
    "half of two, though the head is one of them": (2, 0, {0}, (), False),
    "half of two": (2, 0, {1}, (), False),
    "half of four, though the head is one of them": (4, 3, {1, 3}, (), False),
    "half of four": (4, 3, {0, 1}, (), False),
    "three of four": (4, 3, {0, 1, 2}, (), True),
    "those who are not on the configuration do not count": (3, 0, {2, 7, 8, 9}, (), False),
    "one died, one of two": (2, 0, {1}, {0}, True),
    "one died, one of three": (3, 0, {1}, {0}, False),
    "one died, two of three": (3, 0, {1, 2}, {0}, True),
    "one died, one of four": (4, 0, {1}, {0}, False),
    "one died, two of four": (4, 0, {1, 2}, {3}, True),
    "one died, two of five": (5, 0, {1, 2}, {0}, False),
    "one died, three of five": (5, 0, {1, 2, 3}, {0}, True),
    "two died, one of three": (3, 0, {2}, {0, 1}, False),
    "two died, two of five": (5, 0, {3, 4}, {0, 1}, False),
    "two died, two of four": (4, 0, {2, 3}, {0, 1}, True),
    "one that was not on the configuration died": (4, 0, {1, 2}, {9}, False),
}


@pytest.mark.parametrize(("n", "head", "votes", "dead", "enough"), TABLE.values(), ids=TABLE)
def test_is_quorum(n, head, votes, dead, enough):
    assert is_quorum(a_configuration(range(n), head), votes, dead) is enough


@pytest.mark.parametrize(
    ("n", "votes", "dead", "at_once"),
    [
        (2, {1}, {0}, True),
        (4, {2, 3}, {0, 1}, True),
        (4, {2, 3}, {0}, False),  # agent 1 may lead with the vote lease that agent 0 has given it
        (6, {3, 4, 5}, {0, 1}, False),
    ],
)
def test_a_dead_voter_stops_counting_at_once_if_all_others_agree(n, votes, dead, at_once):
    one, leases = a_configuration(range(n)), dict.fromkeys(dead, 4.5)
    assert quorum.is_quorum(one, votes, leases, 0.0) is at_once
    assert quorum.is_quorum(one, votes, leases, 4.5)


@pytest.mark.parametrize("n", range(1, FEW + 1))
def test_with_the_leases_of_the_dead_nobody_leads_beside_all_others(n):
    for one, living in product(settled(n), subsets(range(n))):
        dead = set(range(n)) - living
        if quorum.is_quorum(one, living, dict.fromkeys(dead, 4.5), 0.0):
            for votes in subsets(dead):
                for known in subsets(dead - votes):
                    assert not is_quorum(one, votes, known)


@pytest.mark.parametrize(
    ("n", "heads"), [(2, (2, 3)), (2, (1, 2)), (3, (1, 2)), (3, (3, 4)), (4, (4, 5))], ids=str
)
def test_two_heads_are_never_supported_at_once_whatever_each_knows_of_the_dead(n, heads):
    """All vote leases and all views of the dead. A head that is no voter may have been one."""
    one = a_configuration(range(n), head=n + 2)
    for states in product(product((0, 1, None), (False, True), (False, True)), repeat=n):
        if any(head < n and states[head] != (at, False, False) for at, head in enumerate(heads)):
            continue
        supported = [
            quorum.supported_since(
                one,
                lambda agent, at=at, states=states: 0.0 if states[agent][0] == at else -math.inf,
                head,
                {agent: 4.5 for agent in range(n) if states[agent][1 + at]},
                0.1,
            )
            for at, head in enumerate(heads)
        ]
        assert -math.inf in supported


@pytest.mark.parametrize(
    ("votes", "enough"),
    [({2, 3}, False), ({0, 1, 3}, False), ({0, 2}, False), ({1, 2, 3}, True)],
)
def test_a_configuration_that_is_not_settled_needs_both(votes, enough):
    assert is_quorum(BOTH, votes) is enough


@pytest.mark.parametrize("have_it", subsets(range(4)), ids=str)
def test_a_configuration_is_settled_once_those_without_it_are_less_than_half(have_it):
    assert replaces_old(BOTH, have_it) is (len(have_it) > 2)


@pytest.mark.parametrize("n", range(1, FEW + 1))
def test_old_voters_without_a_settled_configuration_are_no_quorum_whoever_dies(n):
    old = range(n)
    for has_it in subsets(old):
        if replaces_old(a_configuration(old, old=old), has_it):
            without = set(old) - has_it
            for dead in subsets(has_it):
                assert not is_quorum(a_configuration(old), without, dead)
                for head in without:
                    one = a_configuration(old, head)
                    at = [float(agent in without) for agent in old]
                    assert supported_since(one, at.__getitem__, head, dead) < 1
                    assert supported_since(a_configuration(old, n), at.__getitem__, 0, dead) < 1


# Never two at once


def settled(n):
    return [Configuration(1, voters(head, range(n))) for head in range(n)]


def disjoint(configuration, n):
    for one in subsets(range(n)):
        for other in subsets(sorted(set(range(n)) - one)):
            yield one, other


@pytest.mark.parametrize("n", range(1, FEW + 1))
def test_of_two_groups_with_nobody_in_common_one_is_no_quorum(n):
    for configuration in settled(n):
        for one, other in disjoint(configuration, n):
            for dead in subsets(set(range(n)) - one - other):
                # all know who is dead, or one of the groups does
                assert not (
                    is_quorum(configuration, one, dead) and is_quorum(configuration, other, dead)
                )
                assert not (is_quorum(configuration, one, dead) and is_quorum(configuration, other))


@pytest.mark.parametrize("n", quick_and_exhaustive(range(1, FEW), FEW - 2))
def test_the_same_for_the_old_configuration_and_the_new(n):
    for configuration in configurations(n):
        for one, other in disjoint(configuration, n):
            for dead in [(), *({agent} for agent in set(range(n)) - one - other)]:
                assert not (is_quorum(configuration, one, dead) and is_quorum(configuration, other))


# Until when a head leads, from when each of its agents was last bound. It is the first of them.
LEASES = {
    "alone": ([5], 5),
    "one of two": ([5, 1], 5),
    "two of three": ([5, 4, 1], 4),
    "two of four": ([5, 4, 3, 1], 4),
    "three of five": ([9, 1, 2, 3, 4], 3),
    "nobody has answered": ([5, -math.inf, -math.inf], -math.inf),
}


@pytest.mark.parametrize(("at", "expected"), LEASES.values(), ids=LEASES)
def test_supported_since(at, expected):
    assert supported_since(a_configuration(range(len(at))), at.__getitem__, 0) == expected


@pytest.mark.parametrize(
    ("at", "dead", "expected"),
    [
        ([1, 5], (), 1),
        ([3, 5, 1], (), 3),
        ([3, 5, 4, 1], (), 3),
        ([0, 5], {0}, 5),
        ([0, 5, 4], {0}, 4),
        ([0, 5, 4, 1], {0}, 4),
        ([0, 5, 4, 3, 1], {0}, 3),
        ([0, 5, 1], {0, 2}, 1),
        ([3, 5, 4], {0}, 4),
        ([6, 5, 1, 0], {0}, 1),  # who counts no longer does not count for it either
    ],
)
def test_supported_as_a_successor(at, dead, expected):
    """A successor needs more than half; one of the dead is not counted."""
    assert supported_since(a_configuration(range(len(at))), at.__getitem__, 1, dead) == expected


def test_supported_by_both_while_a_configuration_is_not_settled():
    assert supported_since(BOTH, [9, 3, 4, 5].__getitem__, 2) == 4
    assert supported_since(BOTH, [0, 1, 5, 4].__getitem__, 2) == 1  # three of four, as there were


def leads(me, configuration, agents):
    """Return whether an agent that these agents follow leads; it is one of them."""

    def by(some):
        on = parsed(some.agents)
        there = 2 * len(on & agents)
        return there > len(on) or (there == len(on) and some.head == me)

    return all(by(some) for some in configuration.all)


@pytest.mark.parametrize("n", quick_and_exhaustive(range(1, FEW), FEW - 2))
def test_supported_since_is_the_latest_time_with_a_quorum(n):
    for configuration, at in product(configurations(n)[:500], permutations(range(n))):
        for me in range(n):
            times = [min(time, at[me]) for time in at]
            since = [{a for a, time in enumerate(times) if time >= t} for t in range(n)]
            bound = [t for t, agents in enumerate(since) if leads(me, configuration, agents)]
            assert supported_since(configuration, times.__getitem__, me) == max(bound)
