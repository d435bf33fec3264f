"""The configuration: which agents vote on who leads. As in Raft, it is itself agreed upon.

With it goes the record of the job, so that whoever leads next has both from the same quorum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from . import ranges
from .model import NOTHING_SPENT, Tally

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Voters:
    head: int  # that has written this
    agents: str  # the head too; as in "0-3,7", since there may be thousands

    @property
    def members(self) -> frozenset[int]:
        return _parsed(self.agents)


_parsed = lru_cache(maxsize=8)(ranges.parsed)


@dataclass(frozen=True, slots=True)
class Record:
    """What a new head has to know of the job. Who agrees upon it need not look into it."""

    round: int = -1  # the last one that began
    tally: Tally = NOTHING_SPENT  # of restarts


@dataclass(frozen=True, slots=True)
class Configuration:
    version: int
    voters: Voters
    old: Voters | None = None  # which this one replaces; as long as it stands, both count
    record: Record = Record()

    @property
    def all(self) -> tuple[Voters, ...]:
        return (self.voters,) if self.old is None else (self.voters, self.old)

    @property
    def agents(self) -> frozenset[int]:
        return frozenset().union(*(v.members for v in self.all))


def voters(head: int, agents: Iterable[int]) -> Voters:
    return Voters(head, ranges.written(agents))
