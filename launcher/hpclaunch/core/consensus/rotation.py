"""Who leads, and who would be next: known to all beforehand.

Terms are numbered from 0. The first agent of each node can lead, and they take turns in Slurm's
order: that of term `t` is number `t` of them, modulo their count. So no term has two heads.
"""

from __future__ import annotations

from ..protocol.model import Place


class Line:
    def __init__(self, places: tuple[Place, ...]) -> None:
        first: dict[int, int] = {}
        for place in places:
            first.setdefault(place.node, place.index)
        self.agents = tuple(first.values())
        self._turn = {agent: turn for turn, agent in enumerate(self.agents)}

    def __contains__(self, agent: int) -> bool:
        return agent in self._turn

    def __len__(self) -> int:
        return len(self.agents)

    def head_of(self, term: int) -> int:
        return self.agents[term % len(self.agents)]

    def next_term(self, after: int, agent: int) -> int:
        """The first term after this one that is the agent's."""
        return after + 1 + (self._turn[agent] - after - 1) % len(self.agents)
