"""The rotation: the order in which agents lead. All know it, as in Viewstamped Replication.

Terms are numbered from 0. Only the first agent of each node can lead. These `n` agents take turns
in Slurm's order: the head of term `t` is number `t mod n`. So no term has two heads.
"""

from __future__ import annotations

from ..protocol.model import Place


class Rotation:
    def __init__(self, places: tuple[Place, ...]) -> None:
        first: dict[int, int] = {}
        for place in places:
            first.setdefault(place.node, place.index)
        self.agents = tuple(first.values())
        self._turn = {agent: turn for turn, agent in enumerate(self.agents)}
        self._hosts = tuple(place.host for place in places)

    def __contains__(self, agent: int) -> bool:
        return agent in self._turn

    def __len__(self) -> int:
        return len(self.agents)

    def head_of(self, term: int) -> int:
        return self.agents[term % len(self.agents)]

    def host_of(self, agent: int) -> str:
        return self._hosts[agent]

    def after(self, agent: int, most: int) -> list[int]:
        """Return the agents that follow `agent` in the rotation, `most` at most."""
        n, turn = len(self.agents), self._turn[agent]
        return [self.agents[(turn + k) % n] for k in range(1, min(n, most + 1))]

    def next_term(self, after: int, agent: int) -> int:
        """Return the first term later than `after` in which `agent` leads."""
        return after + 1 + (self._turn[agent] - after - 1) % len(self.agents)
