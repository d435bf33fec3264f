"""An agent that is asked to lead: who asks, and whether they are enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ..protocol.configuration import NOBODY, Configuration
from ..protocol.effects import Effect, Send
from ..protocol.messages import Hint
from .follower import Follower
from .quorum import is_quorum


class Ballot(Protocol):
    """What consensus has to know of an agent's report."""

    @property
    def serial(self) -> int: ...
    @property
    def heard(self) -> int: ...
    @property
    def term(self) -> int: ...
    @property
    def seeking(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def configuration(self) -> Configuration | None: ...


B = TypeVar("B", bound=Ballot)


@dataclass(frozen=True)
class Election(Generic[B]):
    """It is won: by these votes, for this term."""

    term: int
    configuration: Configuration  # the newest that a voter has
    old: int  # the head until now
    dead: frozenset[int]  # agents that are proven to be
    votes: Mapping[int, B]


class Candidate(Generic[B]):
    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self._ballots: dict[int, tuple[float, B]] = {}

    def hear(self, sender: int, ballot: B, now: float) -> list[Effect]:
        """Somebody asks, or takes us for its head."""
        mine = self.follower
        if sender in self._ballots and ballot.serial <= self._ballots[sender][1].serial:
            return []
        self._ballots[sender] = (now, ballot)
        if sender == mine.index:
            return []
        if not mine.is_free(now):
            return [Send(sender, Hint(mine.term, led=True))]
        if mine.seeking == NOBODY or ballot.seeking == NOBODY:
            return []
        if ballot.seeking < mine.seeking:
            return [Send(sender, Hint(mine.seeking, led=False))]
        return mine.seek(ballot.seeking, now) if ballot.seeking > mine.seeking else []

    def elected(self, now: float) -> Election[B] | None:
        mine, rotation = self.follower, self.follower.rotation
        if mine.seeking == NOBODY or rotation.head_of(mine.seeking) != mine.index:
            return None
        if not mine.is_free(now):
            return None
        votes = {
            agent: ballot
            for agent, (at, ballot) in self._ballots.items()
            if ballot.seeking == mine.seeking
            and ballot.configuration
            and now < at + mine.timing.loss
        }
        if mine.index not in votes:
            return None
        newest = max(votes.values(), key=lambda vote: (vote.term, vote.version))
        configuration = newest.configuration
        assert configuration is not None, "an agent that has none does not vote"
        old = rotation.head_of(newest.term)
        everybody = all(a in votes or a in mine.dead for a in rotation.agents)
        dead_head = old if old in mine.dead else None
        enough = everybody or is_quorum(configuration, votes.keys(), dead_head)
        if not enough or mine.seeking <= newest.term:
            return None
        return Election(mine.seeking, configuration, old, frozenset(mine.dead), votes)
