"""The leader lease: until when a head has the support of a quorum, and so may let workers run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..protocol.configuration import Configuration, Record, voters
from ..protocol.timing import Timing
from ..protocol.values import replace
from .presence import PeerState, Presence
from .quorum import replaces_old, supported_since
from .rotation import Rotation


class LeaderLease:
    """The lease is over at `until`.

    Working out `until` takes a look at all agents. So that is done at every beat and where a
    decision depends on it, but not for every single report.
    """

    def __init__(
        self,
        rotation: Rotation,
        timing: Timing,
        me: int,
        presences: Sequence[Presence],  # by agent; our own is never read
        configuration: Configuration | None = None,
        tenure: int = 0,  # the term in which this head began; 0 if it was not elected
        *,
        elects: bool = True,  # False: nobody else can lead
    ) -> None:
        self.rotation, self.timing, self.me, self.tenure = rotation, timing, me, tenure
        self.configuration = configuration or Configuration(0, voters(me, rotation.agents))
        self.until = -math.inf
        self.dead_head: int | None = None  # the head that we have replaced, if it is proven dead
        self._awake_since = -math.inf  # when this process began to run again, the last time
        self._presences = presences
        self._elects = elects
        # Whether who comes without a configuration can have followed nobody else. No other head can
        # have been elected so far, since this one has led from the start on, never without a lease.
        self._is_only_head = tenure == 0
        self._has_begun = False
        self._newly_answered: set[int] = set()  # agents that have, since `note_answer` renewed
        self._up_to_date: set[int] = set()  # agents that have this version of the configuration

    @property
    def is_alone(self) -> bool:
        return len(self._presences) == 1

    def renew(self, now: float) -> float | None:
        """Work out `until` anew. Returns until when our own workers may run; None if that is not
        later than before, or if the lease has no end.
        """
        if self.is_alone:
            self.until = math.inf
            return None
        if self._has_begun and not self.holds(now):
            self._is_only_head = False
        self._has_begun = True

        def lease_start(agent: int) -> float:
            return now if agent == self.me else min(now, self._lease_start(agent, now))

        others = (self._presences[agent] for agent in self.rotation.agents if agent != self.me)
        if not self._elects or all(other.is_dead for other in others):
            since = now
        else:
            since = supported_since(self.configuration, lease_start, self.me, self.dead_head)
        until = since + self.timing.vote_lease - self.timing.killing
        is_later, self.until = until > self.until, until
        return until if is_later and not math.isinf(until) else None

    def miss(self, seconds: float, now: float) -> None:
        """This process did not run for so long, until now; the leases of the others went on."""
        self.until -= seconds
        self._awake_since = now

    @property
    def renewable_until(self) -> float:
        """When this head counts as being without a quorum because its lease is over. While this
        process did not run, it could not renew the lease.
        """
        return max(self.until, self._awake_since + self.timing.loss)

    def holds(self, now: float) -> bool:
        return now < self.until

    def will_hold(self, now: float) -> bool:
        """Whether the lease will hold long enough to begin something now.

        An agent that fell silent just now may keep the lease from being renewed until it is given
        up. What begins now should not end before that.
        """
        return now < self.until - self.timing.loss + self.timing.quiet_beat

    def for_workers(self, other: Presence, now: float) -> float:
        """Return for how many seconds after its last report another agent's workers may run."""
        if other.is_given_up or other.state is PeerState.UNANSWERED:
            return 0.0
        return max(0.0, min(self.timing.loss - self.timing.killing, self.until - now))

    def _lease_start(self, agent: int, now: float) -> float:
        """Return from when the agent's vote lease for us is counted: `-inf` if it has given us
        none, `inf` if it can follow no other head.

        One that comes without a configuration is bound by the first order that it hears. If that
        can only be ours, it counts from when we sent that. If we were elected, it may stand where
        another did that has given its vote lease to the head before: it counts once that is over.
        """
        other = self._presences[agent]
        if other.state is PeerState.DEAD_IN_LEASE or self._is_unbound(other):
            return math.inf
        start, came_at = other.answered.lease_start, other.came_at
        if start is None and self._is_only_head and other.is_first and came_at > -math.inf:
            start = other.answered.first_sent_at
        if start is None or not self.is_followed_by(other):
            return -math.inf
        is_settled = self.tenure == 0 or now >= came_at + self.timing.vote_lease
        return start if is_settled else -math.inf

    def _is_unbound(self, other: Presence) -> bool:
        """Whether no head has ever sent the agent a configuration: it has no vote, and follows
        nobody.
        """
        return self._is_only_head and other.term < 0

    def is_of_ours(self, term: int) -> bool:
        """Whether an agent that follows the head of this term follows us. The same agent may have
        led before, with serial numbers of its own, so that an older term says nothing.
        """
        return term >= self.tenure and self.rotation.head_of(term) == self.me

    def is_followed_by(self, other: Presence) -> bool:
        """Whether the other agent follows this head."""
        return self.is_of_ours(other.term)

    # The configuration

    def reconfigure(self, record: Record, addresses: tuple[tuple[int, str], ...] = ()) -> None:
        """Write a new configuration if anything that it says has changed."""
        there = [a for a in self.rotation.agents if self._is_there(a)]
        new = voters(self.me, there)
        in_force = self.configuration.old or self.configuration.voters
        old = None if new == in_force else in_force
        configuration = replace(self.configuration, voters=new, record=record, addresses=addresses)
        if configuration != self.configuration:
            self._adopt(replace(configuration, version=configuration.version + 1, old=old))

    def _is_there(self, agent: int) -> bool:
        other = self._presences[agent]
        return other.term >= 0 and not other.is_given_up

    def _adopt(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self._up_to_date = set()  # not even this agent: its own follower votes like any other
        if configuration.old is None:
            for other in self._presences:
                other.end_vote_lease()

    def note_answer(self, agent: int, version: int, now: float) -> float | None:
        """An agent has answered, and has this version of the configuration.

        While the lease does not hold, it is renewed once so many agents have answered that they may
        be a quorum. Returns what `renew` returns; None if it was not called.
        """
        other = self._presences[agent]
        if agent not in self.rotation or not self.is_followed_by(other):
            return None
        if version >= self.configuration.version:
            self._up_to_date.add(agent)
        if other.answered.lease_start is None or self.holds(now):
            return None
        self._newly_answered.add(agent)
        if 2 * (len(self._newly_answered) + 1) < len(self.configuration.voters.members):
            return None
        self._newly_answered.clear()
        return self.renew(now)

    def drop_old_configuration(self) -> None:
        """Drop the old configuration if enough agents have the new one."""
        if self.configuration.old is None:
            return

        def has_it(agent: int) -> bool:
            other = self._presences[agent]
            no_vote = other.is_dead or self._is_unbound(other)  # so it needs no configuration
            return agent in self._up_to_date or no_vote

        if replaces_old(self.configuration, has_it, self.dead_head):
            version = self.configuration.version + 1
            self._adopt(replace(self.configuration, version=version, old=None))

    def missing(self, now: float) -> list[int]:
        """Return the voters whose vote leases are over, so that they may follow another head."""
        before = now - self.timing.vote_lease
        others = sorted(self.configuration.agents - {self.me})
        return [agent for agent in others if self._lease_start(agent, now) <= before]
