"""Arrivals: the times at which an agent's workers began their collectives, for its samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from ..protocol.model import Arrivals

T = TypeVar("T", int, float)

# The time at which a rank began each collective that it remembers, in ns, by group and number.
Trace = Mapping[str, Mapping[int, int]]

# The most collectives of a group that an agent reports: IN_ALL / agents, but LEAST to MOST.
IN_ALL, MOST, LEAST = 16384, 256, 64
RUN = LEAST // 4  # the shortest run of consecutive ones among these


def together(
    traces: Mapping[int, Trace], agents: int = 1, *, on_gpus: bool = False
) -> tuple[Arrivals, ...]:
    """Return the arrivals in each group, at the collectives that all of its ranks remember. With
    many `agents`, each reports fewer. `traces` are by rank. `on_gpus`: their numbers are steps,
    which stand for collectives on GPUs.
    """
    groups = sorted({group for trace in traces.values() for group in trace})
    most = max(LEAST, min(MOST, IN_ALL // agents))
    return tuple(found for group in groups for found in _of_group(group, traces, most, on_gpus))


def _of_group(
    group: str, traces: Mapping[int, Trace], most: int, on_gpus: bool
) -> Iterator[Arrivals]:
    ranks = {rank: trace[group] for rank, trace in traces.items() if group in trace}
    numbers = _thinned(set.intersection(*(set(times) for times in ranks.values())), most)
    if not numbers:
        return
    usual, late, last = [], [], []
    base = min(times[numbers[0]] for times in ranks.values())
    for number in numbers:
        when, rank = max((times[number], rank) for rank, times in ranks.items())
        half = lower_median(times[number] for times in ranks.values())
        usual.append((half - base) // 1000)
        late.append((when - half) // 1000)
        last.append(rank)
    yield Arrivals(
        group=group,
        members=len(ranks),
        base=base / 1e9,
        numbers=tuple(numbers),
        usual=tuple(usual),
        late=tuple(late),
        last=tuple(last),
        on_gpus=on_gpus,
    )


def _thinned(numbers: set[int], most: int) -> list[int]:
    """Return runs of consecutive numbers, the same on all agents. Taking every second number could
    leave out the first collective of each step, the only one to which a rank may be late.
    """
    every, run = 1, most // 4
    while len(numbers) > most:
        every *= 2
        numbers = {number for number in numbers if number // run % every == 0}
    return sorted(numbers)


def lower_median(values: Iterable[T]) -> T:
    """Return the middle one of the values, or the lower of the two. There is at least one value.
    The module `statistics` takes 10 ms to import.
    """
    found = sorted(values)
    return found[(len(found) - 1) // 2]
