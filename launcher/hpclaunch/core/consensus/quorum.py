"""Which agents form a quorum: enough to decide, so that no two groups decide differently.

The **configuration** lists the voters: one start of an agent for each node. A head leads while a
quorum of the voters gives it **vote leases**: an agent that answers an order follows no other head
until its lease is over. Any two quorums have an agent in common, so the old head's lease ends
before the new head's lease begins. The rules:

- To elect a head, and for a head to lead under a configuration that another head wrote: more than
  half of the voters. One voter that is proven dead is not counted once nobody can have a vote
  lease of it. Of two voters, a dead one stops counting at once: any head but the dead one needs
  the vote of the other.
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

# The agents that are proven dead, and until when somebody may have a vote lease of each.
Dead = Mapping[int, float]


def supported_since(
    configuration: Configuration,
    lease_start: Callable[[int], float],
    me: int,
    dead: Dead,
    now: float,
) -> float:
    """Return since when agent `me` has the support of a quorum; `-inf` for never.

    `lease_start` gives the time from which an agent's vote lease is counted. The result is the
    latest time such that the agents whose lease starts then or later are a quorum.
    """
    return min(_supported_since(some, lease_start, me, dead, now) for some in configuration.all)


def _supported_since(
    voters: Voters, lease_start: Callable[[int], float], me: int, dead: Dead, now: float
) -> float:
    size = len(voters.members)
    if voters.head == me:
        return _since(map(lease_start, voters.members - {me}), (size + 1) // 2 - 1, lease_start(me))
    of_all = _since(map(lease_start, voters.members), size // 2 + 1)
    gone = _uncounted(voters, dead, now)
    if not gone:
        return of_all
    return max(of_all, _since(map(lease_start, voters.members - gone), _majority(voters, gone)))


def _since(times: Iterable[float], enough: int, own: float = math.inf) -> float:
    """Return since when `enough` leases are held; `own` is of one more agent that is needed."""
    latest = sorted(times, reverse=True)
    if enough > len(latest):
        return -math.inf
    return own if enough < 1 else min(own, latest[enough - 1])


def _uncounted(voters: Voters, dead: Dead, now: float) -> set[int]:
    """Return the voters that are proven dead and count no longer."""
    gone = {agent for agent in voters.members if agent in dead}
    return gone if len(voters.members) == 2 else {agent for agent in gone if now >= dead[agent]}


def _majority(voters: Voters, gone: Collection[int]) -> int:
    """Return how many voters elect a head. `gone`: those that count no longer."""
    return (len(voters.members) - (1 if gone else 0)) // 2 + 1


def replaces_old(
    configuration: Configuration, have_it: Collection[int], dead: Dead, now: float
) -> bool:
    """Whether the old configuration's voters without this one can never elect a head."""
    old = configuration.old
    assert old is not None, "there is an old configuration to replace"
    without = old.members.difference(have_it) - _uncounted(old, dead, now)
    return 2 * len(without) < len(old.members)


def is_quorum(configuration: Configuration, votes: Collection[int], dead: Dead, now: float) -> bool:
    """Whether these votes elect a new head."""
    return all(
        len(voters.members.intersection(votes))
        >= _majority(voters, _uncounted(voters, dead, now).difference(votes))
        for voters in configuration.all
    )
