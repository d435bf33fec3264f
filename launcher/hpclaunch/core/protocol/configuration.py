"""The configuration: which agents vote on who leads. As in Raft, a quorum agrees on each change.

It contains the record of the job, so that the next head gets both from the same quorum.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from . import ranges
from .facts import CordonKind
from .model import NOTHING_SPENT, Tally
from .values import value

NOBODY = -1


@value(frozen=True)
class Voters:
    head: int  # the head that wrote this
    # Written as "0-3,7", since there may be thousands. Each number stands for one start of an
    # agent: a later start is listed only once a configuration without that agent is in force.
    agents: str

    @property
    def members(self) -> frozenset[int]:
        return _parsed(self.agents)


_parsed = lru_cache(maxsize=8)(ranges.parsed)


@value(frozen=True)
class Cordon:
    """Agents whose nodes are cordoned while there are spares, all for one reason."""

    kind: CordonKind
    agents: str  # "0-3,7"


@value(frozen=True)
class JobRecord:
    """The state of the job that a new head needs. Only heads read it."""

    round: int = -1  # the running round or, between two rounds, the next; -1 before the first
    tally: Tally = NOTHING_SPENT
    cordons: tuple[Cordon, ...] = ()
    unfit: str = ""  # unfit nodes for which a NodesCordoned was recorded


@value(frozen=True)
class Configuration:
    version: int
    voters: Voters
    old: Voters | None = None  # the old configuration's voters, while both must agree
    record: JobRecord = JobRecord()
    # The addresses of the next agents in the rotation: no name need be looked up when the head is
    # lost.
    addresses: tuple[tuple[int, str], ...] = ()
    tenure: int = 0  # the term in which the head that wrote it began to lead

    @property
    def age(self) -> tuple[int, int]:
        """A key that orders configurations: it is greater for a later one."""
        return (self.tenure, self.version)

    @property
    def all(self) -> tuple[Voters, ...]:
        """The groups of voters that must each agree."""
        return (self.voters,) if self.old is None else (self.voters, self.old)

    @property
    def agents(self) -> frozenset[int]:
        return frozenset().union(*(v.members for v in self.all))


def voters(head: int, agents: Iterable[int]) -> Voters:
    return Voters(head, ranges.written(agents))
