"""When the workers of one agent began their collectives, in short."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..protocol.model import Arrivals
from .medians import lower_median

# When a rank began each collective that it remembers, in ns: by process group, and its number.
Trace = Mapping[str, Mapping[int, int]]

MOST, LEAST = 16384, 64  # collectives of a group that the head compares, in all and of each agent


def together(traces: Mapping[int, Trace], agents: int = 1) -> tuple[Arrivals, ...]:
    """The last of those collectives that all of these ranks remember which are in the group.
    `traces` are by rank; with many agents, each one sends less.
    """
    groups = sorted({group for trace in traces.values() for group in trace})
    most = max(LEAST, MOST // agents)
    return tuple(found for group in groups for found in _of_group(group, traces, most))


def _of_group(group: str, traces: Mapping[int, Trace], most: int) -> Iterator[Arrivals]:
    ranks = {rank: trace[group] for rank, trace in traces.items() if group in trace}
    numbers = sorted(set.intersection(*(set(times) for times in ranks.values())))[-most:]
    if not numbers:
        return
    first = numbers[0]
    usual, late, last = [], [], []
    base = min(times[first] for times in ranks.values())
    for expected, number in enumerate(numbers, first):
        if number != expected:
            break
        when, rank = max((times[number], rank) for rank, times in ranks.items())
        half = lower_median(times[number] for times in ranks.values())
        usual.append((half - base) // 1000)
        late.append((when - half) // 1000)
        last.append(rank)
    yield Arrivals(group, len(ranks), first, base / 1e9, tuple(usual), tuple(late), tuple(last))
