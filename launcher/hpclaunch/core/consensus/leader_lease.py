"""A head and its quorum: until when it may let workers run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..protocol.configuration import Configuration, Record, voters
from ..protocol.timing import Timing
from .presence import PeerState, Presence
from .quorum import replaces_old, supported_since
from .rotation import Rotation


class LeaderLease:
    """`until` is worked out at every beat, and when something hinges on it: never for every single
    report, since it is a look at all agents."""

    def __init__(
        self,
        rotation: Rotation,
        timing: Timing,
        me: int,
        presences: Sequence[Presence],  # by agent; our own is not looked at
        configuration: Configuration | None = None,
    ) -> None:
        self.rotation, self.timing, self.me = rotation, timing, me
        self.configuration = configuration or Configuration(0, voters(me, rotation.agents))
        self.until = -math.inf
        self.dead_head: int | None = None  # whom we have replaced, if it is proven dead
        self._presences = presences
        self._first = configuration is None
        self._answered: set[int] = set()  # who has since the last look, and may make a quorum
        self._has_it: set[int] = set()  # who has this version of the configuration

    @property
    def is_alone(self) -> bool:
        return len(self._presences) == 1

    def renew(self, now: float) -> float | None:
        """Until when our own workers may run, if that is later than before."""
        if self.is_alone:
            self.until = math.inf
            return None

        def at(agent: int) -> float:
            return now if agent == self.me else min(now, self._leased_at(agent))

        others = (self._presences[agent] for agent in self.rotation.agents if agent != self.me)
        nobody_else = all(other.is_dead for other in others)
        votes = supported_since(self.configuration, at, self.me, self.dead_head)
        since = now if nobody_else else votes
        until = since + self.timing.vote_lease - self.timing.killing
        later, self.until = until > self.until, until
        return until if later and not math.isinf(until) else None

    def holds(self, now: float) -> bool:
        return now < self.until

    def will_hold(self, now: float) -> bool:
        """For as long as it takes to give up those who may keep it from being renewed: what begins
        now is not over before."""
        return now < self.until - self.timing.loss + self.timing.beat

    def for_workers(self, other: Presence, now: float) -> float:
        """For how many seconds since its last report the workers of another agent may run."""
        if other.is_given_up or other.state is PeerState.UNANSWERED:
            return 0.0
        return max(0.0, min(self.timing.loss - self.timing.killing, self.until - now))

    def _leased_at(self, agent: int) -> float:
        """When we sent the newest message that it has answered as a follower of ours: its vote
        lease is counted from then."""
        other = self._presences[agent]
        if other.state is PeerState.LOYAL or self._knows_nothing(other):
            return math.inf
        answered = other.answered.at
        return -math.inf if answered is None or not self.is_followed_by(other) else answered

    def _knows_nothing(self, other: Presence) -> bool:
        """One that no head has told of a configuration cannot vote."""
        return self._first and other.term < 0

    def is_followed_by(self, other: Presence) -> bool:
        return other.term >= 0 and self.rotation.head_of(other.term) == self.me

    # The configuration

    def reconfigure(self, record: Record) -> None:
        """Those who are there vote from now on, and have this record."""
        there = [a for a in self.rotation.agents if self._is_there(a)]
        new, settled = voters(self.me, there), self.configuration.old or self.configuration.voters
        old = None if new == settled else settled
        configuration = replace(self.configuration, voters=new, record=record)
        if configuration != self.configuration:
            self._next(replace(configuration, version=configuration.version + 1, old=old))

    def _is_there(self, agent: int) -> bool:
        other = self._presences[agent]
        return other.term >= 0 and not other.is_given_up

    def _next(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self._has_it = {self.me}
        if configuration.old is None:
            for other in self._presences:
                other.bury()

    def note(self, agent: int, version: int, now: float) -> float | None:
        """It has answered, and has this version of the configuration. What that says of the quorum
        is worked out when it may be enough. Returns what `renew` does."""
        other = self._presences[agent]
        if agent not in self.rotation or not self.is_followed_by(other):
            return None
        if version >= self.configuration.version:
            self._has_it.add(agent)
        if other.answered.at is None or self.holds(now):
            return None
        self._answered.add(agent)
        if 2 * (len(self._answered) + 1) < len(self.configuration.voters.members):
            return None
        self._answered.clear()
        return self.renew(now)

    def settle(self) -> None:
        """The old configuration no longer counts once a quorum has the new one."""
        if self.configuration.old is None:
            return

        def has_it(agent: int) -> bool:
            other = self._presences[agent]  # who votes no more does not count
            return agent in self._has_it or other.is_dead or self._knows_nothing(other)

        if replaces_old(self.configuration, has_it, self.dead_head):
            version = self.configuration.version + 1
            self._next(replace(self.configuration, version=version, old=None))

    def missing(self, now: float) -> list[int]:
        """The voters that have not answered for so long that they may follow another head."""
        before = now - self.timing.vote_lease
        others = sorted(self.configuration.agents - {self.me})
        return [agent for agent in others if self._leased_at(agent) <= before]
