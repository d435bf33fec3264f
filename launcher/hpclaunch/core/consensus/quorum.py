"""Which agents form a quorum: enough to decide, so that no two groups decide differently.

The **configuration** lists the voters: one start of an agent for each node. A head leads while a
quorum of the voters gives it **vote leases**: an agent that answers an order follows no other head
until its lease is over. Any two quorums have an agent in common, so the old head's lease ends
before the new head's lease begins. The rules:

- To elect a head, and for a head to lead under a configuration that another head wrote: more than
  half of the voters. One voter that is proven dead is not counted, once nobody can have a vote
  lease of it.
- The head that wrote the configuration needs only half of the voters, itself among them.
- While a configuration replaces another, both must agree, as in Raft's joint consensus. It has
  replaced the old one once less than half of the old voters may be alive without it.

Not more than one of the dead is left out of the count: those that died may have been the ones that
had a newer configuration. The old voters without it are less than half, so they are no majority of
all but one, whoever else dies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

from ..protocol.configuration import Configuration, Voters


def supported_since(
    configuration: Configuration,
    lease_start: Callable[[int], float],
    me: int,
    dead: Collection[int] = (),
) -> float:
    """Return since when agent `me` has the support of a quorum; `-inf` for never.

    `lease_start` gives the time from which an agent's vote lease is counted. The result is the
    latest time such that the agents whose lease starts then or later are a quorum. `dead` are the
    agents that count no longer.
    """
    return min(_supported_since(some, lease_start, me, dead) for some in configuration.all)


def _supported_since(
    voters: Voters, lease_start: Callable[[int], float], me: int, dead: Collection[int]
) -> float:
    size = len(voters.members)
    if voters.head == me:
        return _since(map(lease_start, voters.members - {me}), (size + 1) // 2 - 1, lease_start(me))
    counted = voters.members.difference(dead)
    of_all = _since(map(lease_start, voters.members), size // 2 + 1)
    if len(counted) == size:
        return of_all
    return max(of_all, _since(map(lease_start, counted), _majority(voters, dead)))


def _since(times: Iterable[float], enough: int, own: float = math.inf) -> float:
    """Return since when `enough` leases are held; `own` is of one more agent that is needed."""
    latest = sorted(times, reverse=True)
    if enough > len(latest):
        return -math.inf
    return own if enough < 1 else min(own, latest[enough - 1])


def _majority(voters: Voters, dead: Collection[int]) -> int:
    """Return how many voters elect a head."""
    return (len(voters.members) - any(agent in voters.members for agent in dead)) // 2 + 1


def replaces_old(configuration: Configuration, have_it: Collection[int]) -> bool:
    """Whether the old configuration's voters without this one can never elect a head. `have_it`
    includes the agents that count no longer.
    """
    assert configuration.old is not None, "there is an old configuration to replace"
    members = configuration.old.members
    return 2 * len(members.difference(have_it)) < len(members)


def uncounted(
    configuration: Configuration, me: int, ends: Mapping[int, float], now: float
) -> set[int]:
    """Return the voters that are proven dead and count no longer, since nobody can have a vote
    lease of theirs. `ends`: of each that is proven dead, when the last one ends. Where no voter but
    `me` is alive, nobody has one.
    """
    dead = {agent for agent in configuration.agents if agent in ends}
    if configuration.agents - {me} <= dead:
        return dead
    return {agent for agent in dead if now >= ends[agent]}


def is_quorum(
    configuration: Configuration, votes: Collection[int], dead: Collection[int] = ()
) -> bool:
    """Whether these votes elect a new head. `dead`: agents that count no longer."""
    return all(
        len(voters.members.intersection(votes)) >= _majority(voters, set(dead).difference(votes))
        for voters in configuration.all
    )
