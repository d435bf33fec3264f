"""Lateness: the rank that arrives last at the collectives, and the time that this costs the others.

All ranks leave a collective at the same time, so their steps take equally long. Only the times at
which they begin a collective show which rank is slow. A step loses the time by which the last rank
is late. A late rank may be late to several collectives of a step, so only the largest delay counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..protocol.model import NO_RANK, Arrivals, Sample
from ..protocol.values import value
from .arrivals import RUN, lower_median

LEAST = 0.1  # share of the time that is lost
MOSTLY = 0.7  # share of the lost time that is due to one node
PARTS = 5  # into which a sample is divided
SPREAD = 0.6  # share of the parts in which at least half of LEAST is lost
LEAST_WANTED = 0.15  # share of the time that a rank needs a CPU or storage more than others


@value(frozen=True)
class Late:
    node: int
    rank: int  # NO_RANK: several ranks of this node
    seconds: float  # lost in each step
    pace: float  # seconds for a step
    on_gpus: bool = False  # GPUs run the collectives: only the host processes are seen to be late


@value(frozen=True)
class Lateness:
    steps: int  # the steps that were compared; 0: too little data
    late: Late | None  # None: no rank is late


@value(frozen=True)
class LastArrival:
    """A collective that all ranks have begun, and the last one of them."""

    at: float  # on the head's clock
    group: str
    number: int  # of the collective in its group
    node: int  # of the last rank
    agent: int | None  # of the last rank; None: half of this node's agents are about as late
    rank: int  # the last rank; NO_RANK: half of this agent's ranks, or agents, are about as late
    late: float  # seconds after half of all ranks had begun it
    on_gpus: bool  # as in Late


def find(samples: Mapping[int, Sample], nodes: Mapping[int, int]) -> Lateness:
    """Find a late rank. `samples` are by agent, of all agents that take part in the round, and
    `nodes` has the node of each.
    """
    pace = pace_of(samples)
    if not pace:
        return Lateness(0, None)
    if all(sample.blind for sample in samples.values()):
        return _by_load(samples, nodes, pace)
    return _by_arrivals(samples, nodes, pace)


def pace_of(samples: Mapping[int, Sample]) -> float:
    """Return the seconds for a step; 0: not known."""
    paces = [sample.pace for sample in samples.values() if sample.pace > 0]
    return lower_median(paces) if paces else 0.0


def _by_arrivals(samples: Mapping[int, Sample], nodes: Mapping[int, int], pace: float) -> Lateness:
    last_arrivals = sorted(_last_arrivals(samples, nodes), key=lambda each: each.at)
    if not last_arrivals:
        return Lateness(0, None)
    begun = last_arrivals[0].at
    worst: dict[int, LastArrival] = {}  # of each step
    for each in last_arrivals:
        number = int((each.at - begun) / pace + 0.5)  # the step of the collective, by its time
        if number not in worst or each.late > worst[number].late:
            worst[number] = each
    if last := max(worst):
        del worst[last]  # the last step is incomplete
    steps = max(1, len(worst), int(_watched(last_arrivals) / pace + 0.5))
    costs: dict[int, float] = {}
    for each in worst.values():
        costs[each.node] = costs.get(each.node, 0.0) + each.late
    node = max(costs, key=lambda node: costs[node])
    cost = costs[node]
    enough = cost >= LEAST * pace * steps and cost >= MOSTLY * sum(costs.values())
    own = [step for step in worst.values() if step.node == node]
    rank = _mostly(own)
    late = [step.late if step.node == node else 0.0 for _, step in sorted(worst.items())]
    if rank is None or not enough or not _is_spread(late, steps, pace):
        return Lateness(steps, None)
    on_gpus = any(step.on_gpus for step in own if step.late)
    return Lateness(steps, Late(node, rank, cost / steps, pace, on_gpus=on_gpus))


def _watched(last_arrivals: Iterable[LastArrival]) -> float:
    """Return the seconds that runs of consecutive collectives cover, in the group where they cover
    the most.
    """
    last: dict[str, LastArrival] = {}
    seconds: dict[str, float] = {}
    for each in last_arrivals:
        before = last.get(each.group)
        if before is not None and each.number - before.number <= RUN:
            seconds[each.group] = seconds.get(each.group, 0.0) + each.at - before.at
        last[each.group] = each
    return max(seconds.values(), default=0.0)


def _is_spread(late: Sequence[float], steps: int, pace: float) -> bool:
    """Return whether a rank is late throughout, not only once for a save. `late` is by step."""
    parts = min(PARTS, len(late))
    costs = [0.0] * parts
    for i, seconds in enumerate(late):
        costs[i * parts // len(late)] += seconds
    hit = sum(cost >= LEAST / 2 * pace * steps / parts for cost in costs)
    return hit >= SPREAD * parts


def _mostly(steps: Iterable[LastArrival]) -> int | None:
    """Return the rank that causes most of the lateness; NO_RANK if ranks cause it together; None
    if no rank, no agent and not the node as a whole causes most.
    """
    costs: dict[tuple[int | None, int], float] = {}
    for step in steps:
        who = step.agent, step.rank
        costs[who] = costs.get(who, 0.0) + step.late
    who = max(costs, key=lambda who: costs[who])
    return who[1] if costs[who] >= MOSTLY * sum(costs.values()) else None


def _last_arrivals(
    samples: Mapping[int, Sample], nodes: Mapping[int, int]
) -> Iterator[LastArrival]:
    """Yield the last arrival at each collective that all agents of its group report."""
    groups: dict[str, dict[int, Arrivals]] = {}
    for agent, sample in samples.items():
        for arrivals in sample.arrivals:
            groups.setdefault(arrivals.group, {})[agent] = arrivals
    for group, agents in groups.items():
        errors = {agent: samples[agent].error for agent in agents}
        rows = [
            (agent, arrivals, arrivals.base + samples[agent].ahead, _places(arrivals))
            for agent, arrivals in agents.items()
        ]
        for number in sorted(set.intersection(*(set(places) for *_, places in rows))):
            halves: dict[int, float] = {}  # by agent
            at, whose, i = -math.inf, rows[0], 0
            for row in rows:
                agent, arrivals, base, places = row
                place = places[number]
                half = base + arrivals.usual[place] / 1e6
                halves[agent] = half
                if half + arrivals.late[place] / 1e6 > at:
                    at, whose, i = half + arrivals.late[place] / 1e6, row, place
            agent, arrivals, *_ = whose
            late = at - lower_median(halves.values())
            # The times of one agent are on one clock. The head's own clock has no error.
            others = [error for other, error in errors.items() if other != agent]
            error = errors[agent] + lower_median(others) if others else 0.0
            alike = arrivals.members > 1 and arrivals.late[i] / 1e6 < late / 2
            node = nodes[agent]
            here = [half for other, half in halves.items() if nodes[other] == node]
            together = len(here) > 1 and at - lower_median(here) < late / 2
            who = None if together else agent
            rank = NO_RANK if together or alike else arrivals.last[i]
            late = late if late > error else 0.0
            yield LastArrival(at, group, number, node, who, rank, late, arrivals.on_gpus)


def _places(arrivals: Arrivals) -> dict[int, int]:
    return {number: i for i, number in enumerate(arrivals.numbers)}


def _by_load(samples: Mapping[int, Sample], nodes: Mapping[int, int], pace: float) -> Lateness:
    """Find a late rank without flight records: ranks that wait neither use nor need a CPU."""
    wanted = {
        (agent, load.rank): min(1.0, load.cpu) + load.queued + load.blocked
        for agent, sample in samples.items()
        for load in sample.loads
    }
    if len(wanted) < 2:
        return Lateness(0, None)
    usual = lower_median(wanted.values())
    agent, rank = max(wanted, key=lambda key: wanted[key])
    more = min(1.0, wanted[agent, rank] - usual)
    late = Late(nodes[agent], rank, more * pace, pace) if more >= LEAST_WANTED else None
    return Lateness(1, late)


def collectives_a_step(samples: Mapping[int, Sample]) -> float:
    """Estimate the collectives in a step, in the group with the most; 0 if not known."""
    found = [0.0]
    for sample in samples.values():
        for arrivals in sample.arrivals:
            span = (arrivals.usual[-1] - arrivals.usual[0]) / 1e6
            if span and sample.pace:
                found.append((arrivals.numbers[-1] - arrivals.numbers[0]) * sample.pace / span)
    return max(found)
