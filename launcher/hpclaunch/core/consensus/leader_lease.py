"""A head and its quorum: until when it may let workers run."""

from __future__ import annotations

import math
from dataclasses import replace

from ..head.roster import Peer, Roster
from ..protocol.configuration import Configuration, voters
from ..protocol.effects import Effect, KeepWorkers
from ..protocol.messages import Report
from ..protocol.model import Job, Tally
from ..protocol.ranges import parsed
from .quorum import replaces_old, supported_since
from .rotation import Line


class LeaderLease:
    """`until` is worked out at every beat, and when something hinges on it: never for every single
    report, since it is a look at all agents."""

    def __init__(
        self, job: Job, line: Line, me: int, roster: Roster, configuration: Configuration | None
    ) -> None:
        self.job, self.line, self.me, self.roster = job, line, me, roster
        self.configuration = configuration or Configuration(0, voters(me, line.agents))
        self.until = -math.inf
        self.dead_head: int | None = None  # whom we have replaced, if it is proven dead
        self._first = configuration is None
        self._answered: set[int] = set()  # who has since the last look, and may make a quorum
        self._has_it: set[int] = set()  # of those on the configuration, who have this version

    def renew(self, now: float) -> list[Effect]:
        """What follows for the workers of this very agent."""
        if self.job.alone:
            self.until = math.inf
            return []

        def at(agent: int) -> float:
            return now if agent == self.me else min(now, self._promised_at(self.roster[agent]))

        others = (self.roster[agent] for agent in self.line.agents if agent != self.me)
        alone = all(peer.gone for peer in others)
        voted = now if alone else supported_since(self.configuration, at, self.me, self.dead_head)
        until = voted + self.job.timing.vote_lease - self.job.timing.killing
        later, self.until = until > self.until, until
        return [KeepWorkers(until)] if later and not math.isinf(until) else []

    def holds(self, now: float) -> bool:
        return now < self.until

    def lasts(self, now: float) -> bool:
        """It is worth beginning something: it will not be over before those are lost who keep it
        from lasting."""
        return now < self.until - self.job.timing.loss + self.job.timing.beat

    def lease(self, peer: Peer, now: float) -> float:
        """For how many seconds since its last report the peer's workers may run."""
        if peer.lost or peer.muted is not None:
            return 0.0
        return max(0.0, min(self.job.timing.loss - self.job.timing.killing, self.until - now))

    def _promised_at(self, peer: Peer) -> float:
        """When we sent the newest order that this one has answered as a follower of ours."""
        if peer.kept_word or self._knows_nothing(peer):
            return math.inf
        follows = peer.report is not None and self.follows(peer.report)
        return -math.inf if not follows or peer.echo.at is None else peer.echo.at

    def _knows_nothing(self, peer: Peer) -> bool:
        """One that no head has told of a configuration cannot decide anything."""
        return self._first and peer.report is None

    def follows(self, report: Report) -> bool:
        return self.line.head_of(report.term) == self.me

    # The configuration

    def write(self, number: int, tally: Tally) -> None:
        """Anew, with those who are there."""
        there = [a for a in self.line.agents if self.roster[a].report and not self.roster[a].lost]
        new, settled = voters(self.me, there), self.configuration.old or self.configuration.voters
        old = None if new == settled else settled
        configuration = replace(self.configuration, voters=new, round=number, tally=tally)
        if configuration != self.configuration:
            self._next(replace(configuration, version=configuration.version + 1, old=old))

    def _next(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self._has_it = {self.me}
        for peer in self.roster:
            peer.kept_word = peer.kept_word and configuration.old is not None

    def note(self, peer: Peer, now: float) -> list[Effect]:
        """It has reported. What that says of the quorum is worked out when it may be enough."""
        report, agent = peer.report, peer.place.index
        if report is None or agent not in self.line or not self.follows(report):
            return []
        if report.version >= self.configuration.version:
            self._has_it.add(agent)
        if peer.echo.at is None or self.holds(now):
            return []
        self._answered.add(agent)
        if 2 * (len(self._answered) + 1) < len(parsed(self.configuration.voters.agents)):
            return []
        self._answered.clear()
        return self.renew(now)

    def settle(self) -> None:
        """The configuration is the only one that counts once a quorum has it."""
        configuration = self.configuration
        if configuration.old is None:
            return
        here = self.roster

        def has_it(agent: int) -> bool:
            nobody = here[agent].gone or self._knows_nothing(here[agent])  # it votes no more
            return agent in self._has_it or nobody

        if replaces_old(configuration, has_it, self.dead_head):
            self._next(replace(configuration, version=configuration.version + 1, old=None))

    def missing(self, now: float) -> list[Peer]:
        """Those on the configuration who have not answered for so long that they may follow another."""
        before = now - self.job.timing.vote_lease
        others = sorted(self.configuration.agents - {self.me})
        return [p for a in others if self._promised_at(p := self.roster[a]) <= before]
