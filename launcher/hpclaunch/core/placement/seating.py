"""Which nodes take part in a round, in the order of their groups; the others are spares."""

from __future__ import annotations

from collections.abc import Sequence


def seated(last: Sequence[int], fit: Sequence[int], most: int) -> list[int]:
    """`last` are the nodes of the round before in the order of their groups, `fit` those that can
    take part in Slurm's order, of which `most` may (0: all).

    Who was there keeps its group, and so its ranks: a spare takes the group of a node that is out.
    Without spares the last ones fill the holes. Who is new comes behind.
    """
    size = min(most or len(fit), len(fit))
    there, before = set(fit), set(last)
    spares = [node for node in fit if node not in before]
    spares.reverse()
    groups: list[int | None] = [node if node in there else None for node in last]
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
