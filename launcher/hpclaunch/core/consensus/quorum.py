"""Which agents form a quorum: enough to decide, so that no two groups decide differently.

The **configuration** lists the voters: one agent of each node that was there at the last beat. A
head leads while a quorum of the voters gives it **vote leases**: an agent that answers an order
follows no other head until its lease is over. A new head also needs a quorum, of agents whose vote
leases are over. Any two quorums have an agent in common, so the old head's lease ends before the
new head's lease begins.

A quorum is more than half of the voters. There is one exception: for the head that wrote the
configuration, exactly half is enough if it is in that half itself. The other half cannot elect
another head while this one lives. Two more rules hold for agents that are proven dead (their own
hosts have said so):

- An agent that died within its vote lease has followed no other head, and never will. It counts as
  a vote for the head that it answered last.
- A dead head follows nobody. The next head needs more than half of the other voters. These still
  have an agent in common with every majority that once included the dead head.

A new configuration replaces the old one only once a majority of the old one has it. Until then,
every decision needs a quorum of both, as in Raft's joint consensus.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from ..protocol.configuration import NOBODY, Configuration, Voters


def supported_since(
    configuration: Configuration,
    lease_start: Callable[[int], float],
    me: int,
    dead_head: int | None = None,
) -> float:
    """Return since when agent `me` has the support of a quorum; `-inf` for never.

    `lease_start` gives the time from which an agent's vote lease is counted. The result is the
    latest time such that the agents whose lease starts then or later are a quorum. `dead_head` is
    the head that `me` has replaced, if that is proven dead.
    """
    return min(_supported_since(some, lease_start, me, dead_head) for some in configuration.all)


def _supported_since(
    voters: Voters, lease_start: Callable[[int], float], me: int, dead_head: int | None = None
) -> float:
    members = voters.members - {dead_head}
    times = sorted((lease_start(agent) for agent in members), reverse=True)
    half, odd = divmod(len(times), 2)
    of_majority = times[half] if half < len(times) else -math.inf
    if odd or voters.head != me or me not in members or dead_head in voters.members:
        return of_majority
    # Exactly half of the voters are enough, if `me` is one of them.
    own = lease_start(me)
    times.remove(own)
    return max(of_majority, own if half == 1 else min(own, times[half - 2]))


def replaces_old(
    configuration: Configuration, has_it: Callable[[int], bool], dead_head: int | None = None
) -> bool:
    """Whether enough agents have the configuration that the old one no longer counts.

    Exactly half of the old voters are not enough, even with the head among them: if the head died,
    the other half could be a quorum without it.
    """
    assert configuration.old is not None, "there is an old configuration to replace"
    new = configuration.voters
    return all(
        _supported_since(voters, lambda agent: float(has_it(agent)), me, dead_head) >= 1
        for voters, me in ((configuration.old, NOBODY), (new, new.head))
    )


def is_quorum(
    configuration: Configuration, votes: Collection[int], dead_head: int | None = None
) -> bool:
    """Whether these votes elect a new head. `dead_head` is the old head, if it is proven dead."""
    for voters in configuration.all:
        count = sum(agent in voters.members for agent in votes)
        living = len(voters.members - {dead_head})
        if 2 * count <= living:
            return False
    return True
