"""Which agents are enough to decide, so that no two decide differently.

The **configuration** lists the voters: one agent for each node that was there at the last beat. A
head leads while a quorum of them gives it **vote leases**: whoever answers an order follows no
other head until its lease is over. A new head needs a quorum as well, of agents that are free.
Any two quorums have an agent in common, so the old head's lease ends before the new one's begins.

A quorum is more than half. For the head that wrote the configuration, half is enough if it is one
of them: it goes on with that half, and nobody else can begin while it lives. Two more rules are for
what is proven dead (its host refuses the connection):

- An agent that died within its vote lease has never followed another head, and never will: it
  counts as a follower of the head that it had last answered.
- A dead head follows nobody. The next one needs more than half of the others. A majority of all,
  with the dead head once among them, still has an agent in common with these.

A configuration replaces the old one only once a majority of the old one has it; until then every
decision needs a quorum of both, as in Raft's joint consensus.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from ..protocol.configuration import NOBODY, Configuration, Voters


def supported_since(
    configuration: Configuration,
    at: Callable[[int], float],
    me: int,
    dead_head: int | None = None,
) -> float:
    """The latest time such that those with `at(agent)` no earlier are a quorum for agent `me`."""
    return min(_supported_since(some, at, me, dead_head) for some in configuration.all)


def _supported_since(
    some: Voters, at: Callable[[int], float], me: int, dead_head: int | None = None
) -> float:
    members = some.members - {dead_head}
    times = sorted((at(agent) for agent in members), reverse=True)
    half, odd = divmod(len(times), 2)
    latest = times[half] if half < len(times) else -math.inf
    if odd or some.head != me or me not in members or dead_head in some.members:
        return latest
    own = at(me)
    times.remove(own)
    return max(latest, own if half == 1 else min(own, times[half - 2]))


def replaces_old(
    configuration: Configuration, has_it: Callable[[int], bool], dead_head: int | None = None
) -> bool:
    """Whether so many have the configuration that the old one no longer counts. For that, half of
    the old one is not enough, whoever is in it: the other half could do without a dead head.
    """
    assert configuration.old is not None, "there is one to replace"
    now = configuration.voters
    return all(
        _supported_since(some, lambda agent: float(has_it(agent)), me, dead_head) >= 1
        for some, me in ((configuration.old, NOBODY), (now, now.head))
    )


def is_quorum(
    configuration: Configuration, votes: Collection[int], dead_head: int | None = None
) -> bool:
    """Whether these may have a new head."""
    for some in configuration.all:
        count = sum(agent in some.members for agent in votes)
        others = len(some.members - {dead_head})
        if 2 * count <= others:
            return False
    return True
