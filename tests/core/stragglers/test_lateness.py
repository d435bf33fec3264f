"""The late rank, by the times at which all ranks began their collectives."""

from __future__ import annotations

from random import Random

import pytest

from hpclaunch.core.protocol.model import NO_RANK, Load, Sample
from hpclaunch.core.protocol.values import replace
from hpclaunch.core.stragglers import lateness
from hpclaunch.core.stragglers.arrivals import together
from hpclaunch.core.stragglers.lateness import Late, collectives_a_step

PACE = 1.0
NODES = {0: (0, 1), 1: (2, 3), 2: (4, 5)}  # the ranks of each agent


def sampled(
    late=None, *, steps=12, jitter=0.0, nodes=NODES, each=3, apart=0.02, groups=None, waits=False
):
    """Return the samples of all agents: in each step all begin `each` collectives, some late.

    `late` is a function of rank and step. `groups` has the process group of each rank. With `waits`
    all leave a collective together, so that no rank is late to the next one.
    """
    rng = Random(3)
    samples = {}
    for agent, ranks in nodes.items():
        traces = {}
        for rank in ranks:
            times = {}
            for step in range(steps):
                behind = late(rank, step) if late else 0.0
                for i in range(each):
                    behind = 0.0 if waits and i else behind
                    at = step * PACE + i * apart + behind + rng.uniform(0.0, jitter)
                    times[step * each + i] = int(1e9 * (50.0 + at))
            traces[rank] = {(groups or {}).get(rank, "0"): times}
        samples[agent] = Sample(PACE, arrivals=together(traces))
    return samples


def find(samples, of=None):
    """Find a late rank. `of` has the node of each agent; None: each has a node of its own."""
    return lateness.find(samples, of or {agent: agent for agent in samples})


def one(who, seconds):
    return lambda rank, step: seconds if rank == who else 0.0


def test_nobody_is_late():
    found = find(sampled(jitter=0.05))
    assert (found.steps, found.late) == (11, None)


@pytest.mark.parametrize("who", range(6))
def test_one_rank_is_late_in_each_step(who):
    late = find(sampled(one(who, 0.3), jitter=0.05)).late
    assert (late.node, late.rank) == (who // 2, who)
    assert 0.25 < late.seconds < 0.35
    assert late.pace == PACE


def test_of_two_ranks_one_is_late():
    late = find(sampled(one(1, 0.3), nodes={0: (0, 1)})).late
    assert (late.node, late.rank) == (0, 1)


def test_a_whole_node_is_late():
    late = find(sampled(lambda rank, step: 0.3 if rank in NODES[1] else 0.0, jitter=0.05)).late
    assert (late.node, late.rank) == (1, NO_RANK)


ONE_EACH = {rank: (rank,) for rank in range(8)}  # an agent for each rank
OF_FOUR = {rank: rank // 4 for rank in range(8)}  # their nodes, of four ranks each


def test_a_whole_node_with_an_agent_for_each_rank_is_late():
    samples = sampled(
        lambda rank, step: 0.3 if rank > 3 else 0.0, jitter=0.1, nodes=ONE_EACH, steps=100
    )
    late = find(samples, OF_FOUR).late
    assert (late.node, late.rank) == (1, NO_RANK)


@pytest.mark.parametrize("who", range(8))
def test_one_rank_of_a_node_with_an_agent_for_each_rank_is_late(who):
    late = find(sampled(one(who, 0.3), jitter=0.05, nodes=ONE_EACH), OF_FOUR).late
    assert (late.node, late.rank) == (who // 4, who)


def test_all_ranks_of_one_agent_of_a_node_are_late():
    nodes = {0: (0, 1), 1: (2, 3), 2: (4, 5), 3: (6, 7)}
    samples = sampled(lambda rank, step: 0.3 * (rank in nodes[3]), jitter=0.05, nodes=nodes)
    late = find(samples, {0: 0, 1: 0, 2: 1, 3: 1}).late
    assert (late.node, late.rank) == (1, NO_RANK)


def test_agents_of_one_node_that_are_late_in_turn():
    """Ranks that are late in turn say nothing of their node, and neither do agents."""
    in_turn = sampled(lambda rank, step: 0.3 * (rank == step % 8), nodes=ONE_EACH)
    assert find(in_turn, dict.fromkeys(range(8), 0)).late is None
    uneven = {rank: rank // 7 for rank in range(8)}
    in_turn = sampled(lambda rank, step: 0.3 * (rank == step % 7), nodes=ONE_EACH)
    assert find(in_turn, uneven).late is None
    pairs = {agent: (2 * agent, 2 * agent + 1) for agent in range(3)}
    in_turn = sampled(lambda rank, step: 0.3 * (rank // 2 == step % 3), nodes=pairs)
    assert find(in_turn, dict.fromkeys(range(3), 0)).late is None


def test_it_is_late_in_most_steps_only():
    late = find(sampled(lambda rank, step: 0.3 * (rank == 2 and step % 3 > 0))).late
    assert late.rank == 2


@pytest.mark.parametrize(
    "late",
    [
        one(3, 0.05),
        lambda rank, step: 5.0 * (rank == 0 and step == 4),  # it has saved something
        lambda rank, step: 0.3 * (rank == step % 6),  # another one each time
        lambda rank, step: 0.3 * (rank == 2 and step < 4),
    ],
)
def test_what_is_no_straggler(late):
    assert find(sampled(late)).late is None


def test_lateness_that_carries_over_counts_once():
    """Collectives that a rank begins one after the other, without waiting for any."""
    assert find(sampled(one(3, 0.06), each=20)).late is None
    assert find(sampled(one(3, 0.3), each=20)).late.seconds == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("each", [1, 3, 4, 8, 20, 50])
@pytest.mark.parametrize("steps", [12, 100])
def test_lateness_that_only_the_first_collective_of_a_step_shows(each, steps):
    """Agents report only some of many collectives, but not every second one, for instance."""
    apart = 0.5 / each
    late = find(sampled(one(3, 0.3), steps=steps, each=each, apart=apart, waits=True)).late
    assert late is not None
    assert (late.node, late.rank) == (1, 3)
    assert find(sampled(one(3, 0.05), steps=steps, each=each, apart=apart, waits=True)).late is None


@pytest.mark.parametrize("steps", [12, 100])
def test_lateness_that_carries_over_counts_once_among_many(steps):
    assert find(sampled(one(3, 0.06), steps=steps, each=20)).late is None
    late = find(sampled(one(3, 0.3), steps=steps, each=20)).late
    assert late.seconds == pytest.approx(0.3, abs=0.1)


def test_clocks_that_are_known_to_some_extent():
    samples = sampled(one(2, 0.3))
    ahead = {0: 0.0, 1: 77.0, 2: -5.0}
    samples = {
        agent: replace(
            sample,
            arrivals=tuple(replace(a, base=a.base - ahead[agent]) for a in sample.arrivals),
            ahead=ahead[agent] + 0.01,
            error=0.02,
        )
        for agent, sample in samples.items()
    }
    assert find(samples).late.rank == 2
    unsure = {agent: replace(sample, error=0.2) for agent, sample in samples.items()}
    assert find(unsure).late is None


def test_one_clock_is_not_in_doubt():
    samples = {0: replace(sampled(one(1, 0.2), nodes={0: (0, 1, 2)})[0], error=0.5)}
    assert find(samples).late.rank == 1


def test_ranks_are_compared_within_their_group():
    groups = {rank: str(rank % 2) for rank in range(6)}
    late = find(sampled(one(3, 0.3), groups=groups)).late
    assert late.rank == 3


def test_what_not_all_remember_is_left_out():
    samples = sampled(one(2, 0.3))
    (arrivals,) = samples[0].arrivals
    later = replace(
        arrivals,
        numbers=arrivals.numbers[9:],
        usual=arrivals.usual[9:],
        late=arrivals.late[9:],
        last=arrivals.last[9:],
    )
    found = find(samples | {0: replace(samples[0], arrivals=(later,))})
    assert (found.steps, found.late.rank) == (8, 2)


def test_ranks_of_one_node_that_are_late_in_turn():
    """Batches of different sizes make ranks late in turn: no rank and no node is at fault."""
    assert (
        find(sampled(lambda rank, step: 0.3 * (rank == step % 6), nodes={0: range(6)})).late is None
    )
    uneven = {0: range(7), 1: (7,)}
    assert find(sampled(lambda rank, step: 0.3 * (rank == step % 7), nodes=uneven)).late is None


def test_two_nodes_of_many():
    nodes = {agent: (agent,) for agent in range(9)}
    late = find(sampled(lambda rank, step: {4: 0.3, 5: 0.29}.get(rank, 0.0), nodes=nodes)).late
    assert late.rank == 4


def test_a_clock_that_is_hardly_known_hides_only_its_own_agent():
    samples = sampled(one(2, 0.3))
    samples[2] = replace(samples[2], error=0.5)
    assert find(samples).late.rank == 2
    samples[1] = replace(samples[1], error=0.5)
    assert find(samples).late is None


def test_of_two_clocks_neither_is_known_better_than_the_other():
    """The head knows its own, and by that it would be late itself."""
    samples = sampled(one(0, 0.3), nodes={0: (0, 1), 1: (2, 3)})
    assert find(samples).late.node == 0
    samples[1] = replace(samples[1], error=0.5)
    assert find(samples).late is None


def test_times_that_hosts_of_gpus_report_are_marked():
    samples = sampled(one(3, 0.3))
    assert not find(samples).late.on_gpus
    handed_over = {
        agent: replace(s, arrivals=tuple(replace(each, on_gpus=True) for each in s.arrivals))
        for agent, s in samples.items()
    }
    assert find(handed_over).late.on_gpus


def test_nothing_to_go_by():
    assert find({}).steps == 0
    assert find({0: Sample(0.0), 1: Sample(0.0)}).steps == 0
    samples = {agent: replace(sample, pace=0.0) for agent, sample in sampled().items()}
    assert find(samples).steps == 0
    apart = {0: Sample(PACE, arrivals=together({0: {"0": {1: 5}}})), 1: Sample(PACE)}
    assert find(apart).late is None


def test_without_a_recorder_the_one_that_never_waits():
    """The others wait for it, and need no CPU for that."""

    def loads(*shares):
        return tuple(Load(rank, *share, 0.0, 0.0) for rank, share in enumerate(shares))

    busy = loads((0.6, 0.0), (0.6, 0.1), (0.7, 0.3))
    blind = Sample(PACE, blind=True, loads=busy)
    assert find({0: blind}).late == Late(0, 2, pytest.approx(0.3), PACE)
    assert find({0: blind, 1: Sample(PACE)}).late is None
    assert find({0: replace(blind, blind=False)}).late is None
    even = loads((0.9, 0.0), (0.95, 0.0), (0.9, 0.1))
    assert find({0: replace(blind, loads=even)}).late is None


def test_how_many_collectives_a_step_has():
    assert collectives_a_step(sampled()) == pytest.approx(3, rel=0.1)
    assert collectives_a_step({0: Sample(PACE)}) == 0
    alone = Sample(PACE, arrivals=together({0: {"0": {1: 5}}}))
    assert collectives_a_step({0: alone}) == 0
