"""The quorum: enough agents to decide, so that no two groups decide differently.

The **configuration** lists the voters: one start of an agent for each node. A head leads while a
quorum of the voters gives it **vote leases**: an agent that answers an order follows no other head
until its lease has ended. Any two quorums have an agent in common, so the old head's lease ends
before the new head's lease begins. The rules:

- Electing a head, and leading under a configuration of another head, takes more than half of the
  voters. One voter that is proven dead is left out of the count once its vote lease has ended. It
  is left out earlier if all voters that are not proven dead agree. But a head that is not a voter
  must wait, since another head that is not a voter may hold the leases of the dead.
- The head that wrote the configuration needs only half of the voters, including itself.
- While a configuration replaces another, a quorum of each is needed, as in Raft's joint consensus.
  The old one is dropped once less than half of its voters may be alive without the new one.

Only one of the dead is left out: the dead may be the voters that had a newer configuration. The
voters without it are less than half of the old ones: too few for a majority even of all but one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

from ..protocol.configuration import Configuration, Voters

# The agents that are proven dead, and when the last vote lease of each ends.
Dead = Mapping[int, float]


def supported_since(
    configuration: Configuration,
    lease_start: Callable[[int], float],
    me: int,
    dead: Dead,
    now: float,
) -> float:
    """Return the start of the quorum's vote leases for agent `me`; `-inf` without a quorum.

    `lease_start` returns the start of an agent's vote lease. The result is the latest time such
    that the agents whose leases start then or later are a quorum.
    """

    def since(voters: Voters) -> float:
        if voters.head == me:
            others, size = voters.members - {me}, len(voters.members)
            return min(lease_start(me), _since(map(lease_start, others), (size + 1) // 2 - 1))
        majorities = _majorities(voters, dead, now, at_once=me in voters.members)
        return max(_since(map(lease_start, some), enough) for some, enough in majorities)

    return min(map(since, configuration.all))


def _since(times: Iterable[float], enough: int) -> float:
    """Return the latest time such that `enough` leases start then or later."""
    latest = sorted(times, reverse=True)
    if enough > len(latest):
        return -math.inf
    return latest[enough - 1] if enough else math.inf


def is_quorum(configuration: Configuration, votes: Collection[int], dead: Dead, now: float) -> bool:
    """Return whether these votes elect a head. To lead, it also needs the vote leases."""
    return all(
        any(len(some.intersection(votes)) >= enough for some, enough in majorities)
        for majorities in (
            _majorities(voters, dead, now, at_once=True) for voters in configuration.all
        )
    )


def _majorities(
    voters: Voters, dead: Dead, now: float, *, at_once: bool
) -> list[tuple[frozenset[int], int]]:
    """Return groups of voters, each with the number of its members that elect a head."""
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
    """Return the voters that are proven dead, and whose vote leases have ended."""
    return {agent for agent in voters.members if agent in dead and now >= dead[agent]}


def replaces_old(
    configuration: Configuration, have_it: Collection[int], dead: Dead, now: float
) -> bool:
    """Return whether the old voters that do not have this configuration can elect no head."""
    old = configuration.old
    assert old is not None, "there is an old configuration to replace"
    without = old.members.difference(have_it) - _uncounted(old, dead, now)
    return 2 * len(without) < len(old.members)
