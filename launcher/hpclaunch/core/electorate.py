"""Who may decide that the job goes on, so that there are never two worlds.

The **roll** lists the agents, one for each node, that were there at the last beat. A head
leads while a quorum of them keeps its word: whoever answers an order follows no other head for the
`promise` after it came. A successor needs a quorum as well, of agents whose word is over. Any two
quorums have an agent in common, so the old head's authority ends before the new one's begins.

A quorum is more than half. For the head that has written the roll, half is enough if it is one of
them: it goes on with that, and nobody else can begin while it lives. There are two more ways, for
what is proven dead (its host refuses the connection):

- An agent that died within its promise has never followed another, and never will: it counts
  as a follower of the head that it had promised to.
- A dead head follows nobody. Its successor needs more than half of the others; a majority of all,
  the dead head once among them, still has an agent in common with these.

A roll replaces the one `prior` to it only once a majority of that has it; until then every decision
needs a quorum of both, as in Raft's joint consensus.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache

from .model import NOTHING_SPENT, Tally

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Voters:
    head: int  # that has written it
    agents: str  # the head too; as in "0-3,7", since there may be thousands


@dataclass(frozen=True, slots=True)
class Roll:
    edition: int
    voters: Voters
    prior: Voters | None = None
    round: int = -1  # the last one that began, and
    tally: Tally = NOTHING_SPENT  # what a successor has to know of restarts

    @property
    def all(self) -> tuple[Voters, ...]:
        return (self.voters,) if self.prior is None else (self.voters, self.prior)

    @property
    def agents(self) -> frozenset[int]:
        return frozenset().union(*(parse(v.agents) for v in self.all))


def voters(head: int, agents: Iterable[int]) -> Voters:
    return Voters(head, ranges(agents))


def promised(
    roll: Roll, at: Callable[[int], float], me: int, dead_head: int | None = None
) -> float:
    """The latest time such that those with `at(agent)` no earlier are a quorum for agent `me`."""
    return min(_promised(v, at, me, dead_head) for v in roll.all)


def _promised(
    some: Voters, at: Callable[[int], float], me: int, dead_head: int | None = None
) -> float:
    everybody = parse(some.agents)
    members = everybody - {dead_head}
    times = sorted((at(agent) for agent in members), reverse=True)
    half, odd = divmod(len(times), 2)
    latest = times[half] if half < len(times) else -math.inf
    if odd or some.head != me or me not in members or dead_head in everybody:
        return latest
    own = at(me)
    times.remove(own)
    return max(latest, own if half == 1 else min(own, times[half - 2]))


def is_told(roll: Roll, knows: Callable[[int], bool], dead_head: int | None = None) -> bool:
    """Whether so many know the roll that the one before it no longer counts. For that, half of
    those is not enough, whoever is among them: the other half could do without a dead head.
    """
    assert roll.prior is not None, "there was one before"
    now = roll.voters
    return all(
        _promised(some, lambda agent: float(knows(agent)), me, dead_head) >= 1
        for some, me in ((roll.prior, NOBODY), (now, now.head))
    )


def is_quorum(roll: Roll, votes: Collection[int], dead_head: int | None = None) -> bool:
    """Whether these may have a new head."""
    for some in roll.all:
        members = parse(some.agents)
        count = sum(agent in members for agent in votes)
        of = len(members) - (dead_head in members)
        if 2 * count <= of:
            return False
    return True


def ranges(numbers: Iterable[int]) -> str:
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ",".join(f"{a}-{b}" if a < b else f"{a}" for a, b in spans)


@lru_cache(maxsize=8)
def parse(text: str) -> frozenset[int]:
    numbers: set[int] = set()
    for span in text.split(","):
        first, _, last = span.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)
