"""The candidate's side of an election: the agents that ask it to lead, and whether it has won."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ..protocol.configuration import NOBODY, Configuration
from ..protocol.effects import Effect, Send
from ..protocol.messages import Hint
from .follower import Follower, Standing
from .quorum import is_quorum


class Ballot(Protocol):
    """The fields of an agent's report that consensus reads."""

    @property
    def incarnation(self) -> str: ...
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
    """An election that this agent has won."""

    term: int  # the term that it leads from now on
    configuration: Configuration  # the newest that any voter has
    old: int  # the last head
    dead: Mapping[int, float]  # agents that are proven dead, and since when
    votes: Mapping[int, B]  # by agent


class Candidate(Generic[B]):
    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self._ballots: dict[int, tuple[float, B]] = {}  # by agent; the time is when it was heard

    def hear(self, sender: int, ballot: B, now: float) -> list[Effect]:
        """Note the ballot of an agent that asks this one to lead, or takes it for the head.

        Returns a hint to ask another agent, or the effects of joining the sender in a later term.
        """
        follower = self.follower
        if sender in self._ballots:
            known = self._ballots[sender][1]
            if ballot.incarnation == known.incarnation and ballot.serial <= known.serial:
                return []
        self._ballots[sender] = (now, ballot)
        if sender == follower.index:
            return []
        if not follower.is_free(now):
            return [Send(sender, Hint(follower.term, led=True))]
        if NOBODY in (follower.seeking, ballot.seeking) or follower.standing is Standing.WAITING:
            return []  # an agent that has never heard a head has no better hint
        if ballot.seeking < follower.seeking:
            return [Send(sender, Hint(follower.seeking, led=False))]
        return follower.seek(ballot.seeking, now) if ballot.seeking > follower.seeking else []

    def elected(self, now: float) -> Election[B] | None:
        """Return the election that this agent has won; None if it has not."""
        follower, rotation = self.follower, self.follower.rotation
        if follower.seeking == NOBODY or rotation.head_of(follower.seeking) != follower.index:
            return None
        if not follower.is_free(now):
            return None
        votes = {
            agent: ballot
            for agent, (heard_at, ballot) in self._ballots.items()
            if ballot.seeking == follower.seeking
            and ballot.configuration
            and now < heard_at + follower.timing.loss
        }
        if follower.index not in votes:
            return None
        known = (vote.configuration for vote in votes.values() if vote.configuration)
        configuration = max(known, key=lambda one: one.age)
        newest = max(vote.term for vote in votes.values())
        # Another configuration may list a later start of an agent that we know to be dead.
        dead = dict(follower.dead) if configuration == follower.configuration else {}
        ends = {agent: since + follower.timing.vote_lease for agent, since in dead.items()}
        if follower.seeking <= newest or not is_quorum(configuration, votes.keys(), ends, now):
            return None
        old = rotation.head_of(newest)
        return Election(follower.seeking, configuration, old, dead, votes)
