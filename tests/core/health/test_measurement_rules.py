"""The schedule of measurements and the judgement of figures, on planted faults and on noise."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from hpclaunch.core.health.findings import Grade, Problem
from hpclaunch.core.health.measurement_rules import (
    Fault,
    FaultKind,
    Link,
    RankMeasurement,
    Speed,
    judge,
    report,
    schedule,
    tournament,
)

PER_NODE = [1, 2, 3, 5, 8]
WRONG = Fault(FaultKind.WRONG, "a product is wrong")


@pytest.mark.parametrize("count", range(40))
def test_a_tournament_has_nobody_twice(count):
    rounds = tournament(count)
    for pairs in rounds:
        players = [player for pair in pairs for player in pair]
        assert len(players) == len(set(players)) == count - count % 2
        assert all(0 <= a < b < count for a, b in pairs)
    met = Counter(pair for pairs in rounds for pair in pairs)
    assert not met or max(met.values()) == 1
    if count <= 8:
        assert len(met) == count * (count - 1) // 2
    else:
        assert len(rounds) == (count - 1).bit_length() + 3


@pytest.mark.parametrize("nodes", [[0], [0] * 8, [0, 0, 1, 1, 1], [0, 1, 2], [5] * 8 + [7] * 8])
def test_pairs_are_within_nodes_first(nodes):
    kinds = []
    for pairs in schedule(nodes, within=True):
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(set(ranks))
        (kind,) = {nodes[a] != nodes[b] for a, b in pairs}
        kinds.append(kind)
    assert kinds == sorted(kinds)


def test_a_large_world_needs_few_rounds_and_leaves_nobody_out():
    nodes = [node for node in range(128) for _ in range(8)]
    rounds = schedule(nodes, within=True)
    assert len(rounds) == 7 + 10
    met = Counter(rank for pairs in rounds for pair in pairs for rank in pair)
    assert set(met.values()) == {17}


def test_ranks_of_small_nodes_are_left_out_where_nobody_is_across():
    rounds = schedule([0, 0, 0, 1], within=True)
    assert sorted(rounds[:3]) == [[(0, 1)], [(0, 2)], [(1, 2)]]
    assert rounds[3:] == [[(0, 3)]]
    assert schedule([0, 0, 0, 1], within=False) == rounds[3:]


def same(figure):
    return Speed(figure, figure)


def gpus(nodes, per_node=4, **changes):
    return [
        RankMeasurement(
            rank=node * per_node + local,
            node=node,
            host=f"n{node + 1}",
            device="NVIDIA H200, bfloat16",
            gpu=f"GPU {local}",
            compute=same(700.0),
            memory=same(4000.0),
        )
        for node in range(nodes)
        for local in range(per_node)
    ]


def links(ranks, speed):
    """All that the schedule asks for, as fast as `speed(a, b)`."""
    pairs = [pair for pairs in schedule([r.node for r in ranks], within=True) for pair in pairs]
    return [Link((a, b), same(speed(ranks[a], ranks[b]))) for a, b in pairs]


def usual(a, b):
    return 180.0 if a.node == b.node else 40.0


def found(ranks, speed=usual):
    findings = judge(ranks, links(ranks, speed))
    return [(f.problem, f.ranks) for f in findings], [f.text for f in findings]


def test_nothing_is_said_of_a_sound_job():
    assert found(gpus(4)) == ([], [])


@pytest.mark.parametrize(
    ("what", "problem"),
    [("compute", Problem.SLOW_COMPUTE), ("memory", Problem.SLOW_MEMORY)],
)
def test_a_slow_gpu_is_named(what, problem):
    ranks = gpus(2)
    ranks[5] = replace(ranks[5], **{what: Speed(getattr(ranks[5], what).best * 0.5, 1.0)})
    problems, (text,) = found(ranks)
    assert problems == [(problem, (5,))]
    assert text.startswith("rank 5 on n2 (GPU 1) ")
    assert text.endswith("(50%)")


def test_half_of_two_is_slow_and_a_tenth_is_not():
    first, second = gpus(1, 2)
    assert found([first, replace(second, compute=same(350.0))])[0] == [(Problem.SLOW_COMPUTE, (1,))]
    assert found([first, replace(second, compute=same(630.0))])[0] == []


def test_only_the_like_are_compared():
    """Another model, and a GPU with other workers on it, are what the user chose."""
    ranks = gpus(1)
    ranks[0] = replace(ranks[0], device="Tesla T4, float16", compute=same(30.0))
    ranks[1] = replace(ranks[1], sharers=2, compute=same(350.0))
    assert found(ranks) == ([], [])


def test_a_slow_link_in_a_node_is_named_by_its_ends():
    def speed(a, b):
        return 20.0 if {a.rank, b.rank} == {5, 7} else usual(a, b)

    problems, (text,) = found(gpus(2), speed)
    assert problems == [(Problem.SLOW_LINK, (5, 7))]
    assert text == (
        "between rank 5 on n2 (GPU 1) and rank 7 on n2 (GPU 3): "
        "all-reduce with 20 GB/s, others 180 (11%)"
    )


def test_a_gpu_with_slow_links_only_is_named_itself():
    def speed(a, b):
        return 20.0 if 6 in (a.rank, b.rank) and a.node == b.node else usual(a, b)

    problems, (text,) = found(gpus(2), speed)
    assert problems == [(Problem.SLOW_LINK, (6,))]
    assert text.startswith("all links of rank 6 on n2 (GPU 2): ")


@pytest.mark.parametrize("nodes", [3, 4, 7, 20])
def test_a_node_with_a_bad_network_is_named_itself(nodes):
    def speed(a, b):
        return 10.0 if a.node != b.node and 2 in (a.node, b.node) else usual(a, b)

    problems, (text,) = found(gpus(nodes), speed)
    assert problems == [(Problem.SLOW_LINK, (8, 9, 10, 11))]
    assert text.startswith("all links of n3 (ranks 8, 9, 10, 11) to other nodes: ")


def test_a_rank_with_a_bad_adapter_is_named_itself():
    def speed(a, b):
        return 10.0 if a.node != b.node and 9 in (a.rank, b.rank) else usual(a, b)

    problems, (text,) = found(gpus(5), speed)
    assert problems == [(Problem.SLOW_LINK, (9,))]
    assert text.startswith("all links of rank 9 on n3 (GPU 1) to other nodes: ")


def test_two_nodes_that_reach_each_other_badly():
    def speed(a, b):
        return 10.0 if {a.node, b.node} == {1, 4} else usual(a, b)

    problems, texts = found(gpus(6, 2), speed)
    assert problems == [(Problem.SLOW_LINK, (2, 8)), (Problem.SLOW_LINK, (3, 9))]
    assert all("n2" in text and "n5" in text for text in texts)


def test_what_is_wrong_comes_first():
    ranks = gpus(1)
    ranks[1] = replace(ranks[1], compute=same(10.0))
    ranks[3] = replace(ranks[3], compute=None, memory=None, fault=WRONG)
    its = [*links(ranks[:3], usual), Link((0, 2), None, Fault(FaultKind.WRONG, "a wrong sum"))]
    findings = judge(ranks, its)
    assert [(f.problem, f.ranks) for f in findings] == [
        (Problem.WRONG_RESULTS, (3,)),
        (Problem.SLOW_COMPUTE, (1,)),
        (Problem.WRONG_RESULTS, (0, 2)),
    ]
    assert findings[0].text == "rank 3 on n1 (GPU 3): a product is wrong"


def on_cpus(count, **changes):
    return [
        RankMeasurement(r, r // 4, f"n{r // 4 + 1}", compute=same(0.1), **changes)
        for r in range(count)
    ]


def test_a_slow_cpu_is_named_with_how_much_of_it_there_was():
    ranks = on_cpus(8)
    ranks[2] = replace(ranks[2], compute=Speed(0.04, 0.02), cpu=0.4)
    findings = judge(ranks, [])
    assert [f.text for f in findings] == [
        "rank 2 on n1 computes 0.04 TFLOP/s, others 0.1 (40%); "
        "it got 40% of its CPU time: other processes run there"
    ]


def windows(rng, speed, busy):
    """Return the speed measured on a busy host, which takes a part of most windows."""
    seen = [speed * rng.uniform(0.95, 1.0) / (1 + rng.expovariate(1 / busy)) for _ in range(20)]
    return Speed(max(seen), sorted(seen)[10])


@pytest.mark.parametrize("seed", range(60))
def test_noise_is_not_taken_for_a_fault_and_hides_none(seed):
    rng = random.Random(seed)
    ranks = on_cpus(rng.choice([2, 3, 8, 24]))
    busy = rng.choice([0.01, 0.3, 1.0, 3.0])
    ranks = [replace(r, compute=windows(rng, 0.1, busy)) for r in ranks]
    its = [
        replace(link, speed=windows(rng, 0.5, min(busy, 1.0)))
        for link in links(ranks, lambda a, b: 1.0)
    ]
    assert judge(ranks, its) == []
    bad = rng.choice(ranks)
    ranks = [
        replace(r, compute=windows(rng, 0.02, busy)) if r is bad and busy < 1 else r for r in ranks
    ]
    problems = [(f.problem, f.ranks) for f in judge(ranks, its)]
    assert problems == ([(Problem.SLOW_COMPUTE, (bad.rank,))] if busy < 1 else [])


def test_the_table_is_short_whatever_the_size():
    ranks = gpus(64)
    its = links(ranks, usual)
    rows = report(ranks, its, "nccl", len(its))
    assert [row.finding.check for row in rows] == ["compute", "memory speed", "links", "links"]
    assert all(row.finding.grade is Grade.OK and len(row.hosts) == 64 for row in rows)
    assert rows[0].finding.found.startswith("256 x NVIDIA H200, bfloat16: median 700 TFLOP/s")
    assert "median 180 GB/s" in rows[2].finding.found


def test_a_fault_has_its_host_and_advice():
    ranks = gpus(2)
    ranks[5] = replace(ranks[5], compute=None, fault=WRONG)
    ranks[0] = replace(ranks[0], compute=same(10.0))
    *_, wrong, slow = report(ranks, [], "nccl", 0)
    assert (wrong.finding.grade, wrong.hosts) == (Grade.FAIL, ("n2",))
    assert (slow.finding.grade, slow.hosts) == (Grade.WARN, ("n1",))
    assert wrong.finding.advice
    assert slow.finding.advice


@pytest.mark.parametrize(
    ("kind", "of_rank", "of_link"),
    [
        (FaultKind.WRONG, Problem.WRONG_RESULTS, Problem.WRONG_RESULTS),
        (FaultKind.FAILED, Problem.FAILED_COMPUTE, Problem.FAILED_LINK),
        (FaultKind.SILENT, Problem.SILENT_RANK, Problem.FAILED_LINK),
    ],
)
def test_each_kind_of_fault_has_its_own_problem(kind, of_rank, of_link):
    ranks = gpus(1)
    ranks[3] = replace(ranks[3], compute=None, memory=None, fault=Fault(kind, "why"))
    its = [Link((0, 1), None, Fault(kind, "why"))]
    found = judge(ranks, its)
    assert [(f.problem, f.ranks) for f in found] == [(of_rank, (3,)), (of_link, (0, 1))]
    rows = report(ranks, its, "nccl", 1)
    assert [row.finding.grade for row in rows[-2:]] == [Grade.FAIL, Grade.FAIL]


def test_pairs_that_were_not_measured_are_counted():
    ranks = gpus(2)
    its = links(ranks, usual)
    *_, row = report(ranks, its[:-3], "nccl", len(its))
    assert row.finding.grade is Grade.WARN
    assert row.finding.found.startswith(f"3 of {len(its)} pairs not measured: ")
