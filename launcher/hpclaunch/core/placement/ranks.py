"""Which ranks each agent gets in a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from ..protocol.model import Place
from ..protocol.values import value


@value(frozen=True)
class Seat:
    """The ranks first_rank .. first_rank + nproc - 1 belong to the agent at `place`."""

    place: Place
    nproc: int
    first_rank: int
    first_local_rank: int
    local_world_size: int
    group_rank: int
    group_world_size: int


def layout(counts: Iterable[int]) -> str:
    """Write numbers of workers as Slurm writes tasks per node: [2, 2, 2, 1] -> "2(x3),1"."""
    runs = [(count, sum(1 for _ in same)) for count, same in groupby(counts)]
    return ",".join(f"{count}(x{n})" if n > 1 else str(count) for count, n in runs)


def seats(
    roster: Iterable[tuple[Place, int]], groups: Sequence[int] | None = None
) -> tuple[Seat, ...]:
    """Give out the ranks 0..n-1, each once, so that the ranks of a node are contiguous.

    `roster` has the place and the number of workers of every agent that takes part, in any order.
    `groups` are their nodes in the order of GROUP_RANK; None means by number. Agents on one node
    share its local ranks.
    """
    entries = list(roster)
    nodes = sorted({place.node for place, _ in entries}) if groups is None else groups
    group_of = {node: group for group, node in enumerate(nodes)}
    ordered = sorted(entries, key=lambda entry: (group_of[entry[0].node], entry[0].index))
    per_node: Counter[int] = Counter()
    for place, nproc in ordered:
        per_node[place.node] += nproc
    rank = 0
    local: Counter[int] = Counter()
    taken = []
    for place, nproc in ordered:
        taken.append(
            Seat(
                place=place,
                nproc=nproc,
                first_rank=rank,
                first_local_rank=local[place.node],
                local_world_size=per_node[place.node],
                group_rank=group_of[place.node],
                group_world_size=len(per_node),
            )
        )
        rank += nproc
        local[place.node] += nproc
    return tuple(taken)


def next_groups(last: Sequence[int], fit: Sequence[int], most: int) -> list[int]:
    """Return the nodes of the next round in the order of their groups.

    `last` are the nodes of the round before, in the order of their groups. `fit` are the nodes that
    can take part, in the order of Slurm's tasks; at most `most` of them do (0: all).

    A node that was in the last round keeps its group, and so its ranks. A spare takes the group of
    a node that is out. Without spares, the last groups move into the gaps. New nodes come last.
    """
    size = min(most or len(fit), len(fit))
    can_take_part, before = set(fit), set(last)
    spares = [node for node in fit if node not in before]
    spares.reverse()
    groups: list[int | None] = [node if node in can_take_part else None for node in last]
    for group, node in enumerate(groups):
        if node is None and spares:
            groups[group] = spares.pop()
    while len(groups) < size and spares:
        groups.append(spares.pop())
    for group, node in enumerate(groups):
        while groups and groups[-1] is None:
            groups.pop()
        if node is None and group < len(groups):
            groups[group] = groups.pop()
    return [node for node in groups if node is not None]
