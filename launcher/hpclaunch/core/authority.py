"""A head and its quorum: until when it may let workers run."""

from __future__ import annotations

import math
from dataclasses import replace

from .bond import DYING
from .effects import Effect, KeepWorkers
from .electorate import Roll, is_told, parse, promised, voters
from .messages import Report
from .model import Job, Tally
from .roster import Peer, Roster
from .succession import Line


class Authority:
    """`until` is worked out at every beat, and when something hinges on it: never for every single
    report, since it is a look at all agents."""

    def __init__(self, job: Job, line: Line, me: int, roster: Roster, roll: Roll | None) -> None:
        self.job, self.line, self.me, self.roster = job, line, me, roster
        self.roll = roll or Roll(0, voters(me, line.agents))
        self.until = -math.inf
        self.dead_head: int | None = None  # whom we have replaced, if it is proven dead
        self._first = roll is None
        self._answered: set[int] = set()  # who has since the last look, and may make a quorum
        self._has_it: set[int] = set()  # of those on the roll, who have this edition

    def renew(self, now: float) -> list[Effect]:
        """What follows for the workers of this very agent."""
        if self.job.alone:
            self.until = math.inf
            return []

        def at(agent: int) -> float:
            return now if agent == self.me else min(now, self._promised_at(self.roster[agent]))

        others = (self.roster[agent] for agent in self.line.agents if agent != self.me)
        alone = all(peer.gone for peer in others)
        voted = now if alone else promised(self.roll, at, self.me, self.dead_head)
        until = voted + self.job.promise - DYING
        later, self.until = until > self.until, until
        return [KeepWorkers(until)] if later and not math.isinf(until) else []

    def holds(self, now: float) -> bool:
        return now < self.until

    def lasts(self, now: float) -> bool:
        """It is worth beginning something: it will not be over before those are lost who keep it
        from lasting."""
        return now < self.until - self.job.silence + self.job.beat

    def lease(self, peer: Peer, now: float) -> float:
        """For how many seconds since its last report the peer's workers may run."""
        if peer.lost or peer.muted is not None:
            return 0.0
        return max(0.0, min(self.job.silence - DYING, self.until - now))

    def _promised_at(self, peer: Peer) -> float:
        """When we sent the newest order that this one has answered as a follower of ours."""
        if peer.kept_word or self._knows_nothing(peer):
            return math.inf
        follows = peer.report is not None and self.follows(peer.report)
        return -math.inf if not follows or peer.echo.at is None else peer.echo.at

    def _knows_nothing(self, peer: Peer) -> bool:
        """One that no head has told of a roll cannot decide anything."""
        return self._first and peer.report is None

    def follows(self, report: Report) -> bool:
        return self.line.head_of(report.term) == self.me

    # The roll

    def write(self, number: int, tally: Tally) -> None:
        """Anew, with those who are there."""
        there = [a for a in self.line.agents if self.roster[a].report and not self.roster[a].lost]
        new, settled = voters(self.me, there), self.roll.prior or self.roll.voters
        prior = None if new == settled else settled
        roll = replace(self.roll, voters=new, round=number, tally=tally)
        if roll != self.roll:
            self._next(replace(roll, edition=roll.edition + 1, prior=prior))

    def _next(self, roll: Roll) -> None:
        self.roll = roll
        self._has_it = {self.me}
        for peer in self.roster:
            peer.kept_word = peer.kept_word and roll.prior is not None

    def note(self, peer: Peer, now: float) -> list[Effect]:
        """It has reported. What that says of the quorum is worked out when it may be enough."""
        report, agent = peer.report, peer.place.index
        if report is None or agent not in self.line or not self.follows(report):
            return []
        if report.edition >= self.roll.edition:
            self._has_it.add(agent)
        if peer.echo.at is None or self.holds(now):
            return []
        self._answered.add(agent)
        if 2 * (len(self._answered) + 1) < len(parse(self.roll.voters.agents)):
            return []
        self._answered.clear()
        return self.renew(now)

    def settle(self) -> None:
        """The roll is the only one that counts once a quorum has it."""
        roll = self.roll
        if roll.prior is None:
            return
        here = self.roster

        def has_it(agent: int) -> bool:
            nobody = here[agent].gone or self._knows_nothing(here[agent])  # it votes no more
            return agent in self._has_it or nobody

        if is_told(roll, has_it, self.dead_head):
            self._next(replace(roll, edition=roll.edition + 1, prior=None))

    def missing(self, now: float) -> list[Peer]:
        """Those on the roll who have not answered for so long that they may follow another."""
        before = now - self.job.promise
        others = sorted(self.roll.agents - {self.me})
        return [p for a in others if self._promised_at(p := self.roster[a]) <= before]
