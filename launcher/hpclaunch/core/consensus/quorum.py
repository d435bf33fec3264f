"""The quorum: enough agents to decide, so that no two groups decide differently.

The **configuration** lists the voters: one start of an agent for each node. A head leads while a
quorum of the voters gives it **vote leases**: an agent that answers an order follows no other head
until its lease is over. Any two quorums have an agent in common, so the old head's lease ends
before the new head's lease begins. The rules:

- To elect a head, and for a head to lead under a configuration that another head wrote: more than
  half of the voters. One voter that is proven dead is not counted once nobody can have a vote lease
  of it. It is not counted at once if every voter that is not proven dead agrees; but a head that is
  no voter itself has to wait, since another one like it may have the leases of the dead.
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

    def since(voters: Voters) -> float:
        if voters.head == me:
            others, size = voters.members - {me}, len(voters.members)
            return min(lease_start(me), _since(map(lease_start, others), (size + 1) // 2 - 1))
        majorities = _majorities(voters, dead, now, at_once=me in voters.members)
        return max(_since(map(lease_start, some), enough) for some, enough in majorities)

    return min(map(since, configuration.all))


def _since(times: Iterable[float], enough: int) -> float:
    """Return since when `enough` leases are held."""
    latest = sorted(times, reverse=True)
    if enough > len(latest):
        return -math.inf
    return latest[enough - 1] if enough else math.inf


def is_quorum(configuration: Configuration, votes: Collection[int], dead: Dead, now: float) -> bool:
    """Return whether these votes elect a new head. It leads once it is supported as well."""
    return all(
        any(len(some.intersection(votes)) >= enough for some, enough in majorities)
        for majorities in (
            _majorities(voters, dead, now, at_once=True) for voters in configuration.all
        )
    )


def _majorities(
    voters: Voters, dead: Dead, now: float, *, at_once: bool
) -> list[tuple[frozenset[int], int]]:
    """Return groups of voters, and how many of each group elect a head."""
    members = voters.members
    size, living = len(members), members.difference(dead)
    all_but_one = (size - 1) // 2 + 1
    majorities = [(members, size // 2 + 1)]
    if at_once and living < members:
        majorities.append((living, max(all_but_one, len(living))))
    if uncounted := _uncounted(voters, dead, now):
        majorities.append((members - uncounted, all_but_one))
    return majorities


def _uncounted(voters: Voters, dead: Dead, now: float) -> set[int]:
    """Return the voters that are proven dead, and of which nobody can have a vote lease."""
    return {agent for agent in voters.members if agent in dead and now >= dead[agent]}


def replaces_old(
    configuration: Configuration, have_it: Collection[int], dead: Dead, now: float
) -> bool:
    """Return whether the old configuration's voters without this one can never elect a head."""
    old = configuration.old
    assert old is not None, "there is an old configuration to replace"
    without = old.members.difference(have_it) - _uncounted(old, dead, now)
    return 2 * len(without) < len(old.members)
