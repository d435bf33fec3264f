"""The leader lease: for how long a quorum supports the head, so that it may let workers run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..protocol.configuration import Configuration, JobRecord, voters
from ..protocol.effects import Effect, KeepWorkers
from ..protocol.timing import Timing
from ..protocol.values import replace
from .presence import PeerState, Presence
from .quorum import Dead, replaces_old, supported_since
from .rotation import Rotation


class LeaderLease:
    """The leader lease of this head, which ends at `until`.

    Computing `until` visits all agents, so it is done at every beat and when a decision depends on
    it, but not for every report.
    """

    def __init__(
        self,
        rotation: Rotation,
        timing: Timing,
        me: int,
        presences: Sequence[Presence],  # by agent
        configuration: Configuration | None = None,
        tenure: int = 0,  # the term in which this head began; 0 if it was not elected
        *,
        elects: bool = True,  # False: nobody else can lead
    ) -> None:
        """Without a `configuration`, this is the job's first head, and so far the only voter."""
        self.rotation, self.timing, self.me, self.tenure = rotation, timing, me, tenure
        self.configuration = configuration or Configuration(0, voters(me, [me]))
        self.until = -math.inf
        self._awake_since = -math.inf  # the end of this process's last pause
        self._presences = presences
        self._elects = elects
        presences[me].has_configuration = True
        self._newly_answered: set[int] = set()  # agents that answered since the last renewal
        self._up_to_date: set[int] = set()  # agents that have this version of the configuration

    def renew(self, now: float) -> list[Effect]:
        """Compute `until` again. If it is later than before, extend the worker lease of our own
        workers.
        """
        if len(self._presences) == 1:
            self.until = math.inf
            return []

        def lease_start(agent: int) -> float:
            return now if agent == self.me else min(now, self._lease_start(agent))

        since = now
        if self._elects:
            since = supported_since(self.configuration, lease_start, self.me, self._dead, now)
        until = since + self.timing.vote_lease - self.timing.killing
        is_later, self.until = until > self.until, until
        return [KeepWorkers(until)] if is_later and not math.isinf(until) else []

    def miss(self, seconds: float, now: float) -> None:
        """Move times back: leases continued while this process did not run for `seconds`."""
        self.until -= seconds
        self._awake_since = now

    @property
    def renewable_until(self) -> float:
        """The time from which this head counts as having no quorum. After a pause of this process,
        that is at least a loss timeout later.
        """
        return max(self.until, self._awake_since + self.timing.loss)

    def holds(self, now: float) -> bool:
        return now < self.until

    def will_hold(self, now: float) -> bool:
        """Return whether the lease will hold long enough to begin something now.

        An agent that has just fallen silent may prevent a renewal until it is given up. The lease
        must hold until then.
        """
        return now < self.until - self.timing.loss + self.timing.quiet_beat

    def for_workers(self, other: Presence, now: float) -> float:
        """Return the worker lease of another agent, in seconds after it sent its last report."""
        if other.is_given_up or other.state is PeerState.UNANSWERED:
            return 0.0
        return max(0.0, min(self.timing.loss - self.timing.killing, self.until - now))

    def _lease_start(self, agent: int) -> float:
        """Return the start of the agent's vote lease for us; `-inf` if it has given us none, or has
        no vote.
        """
        other = self._presences[agent]
        counts = other.has_configuration and self.is_followed_by(other)
        return other.lease_start if counts else -math.inf

    @property
    def _dead(self) -> Dead:
        return {a: p.vote_ends_at for a, p in enumerate(self._presences) if p.has_died}

    def is_of_ours(self, term: int) -> bool:
        """Return whether an agent that follows the head of this term follows us. An older term
        proves nothing: we may have led before, with other serial numbers.
        """
        return term >= self.tenure and self.rotation.head_of(term) == self.me

    def is_followed_by(self, other: Presence) -> bool:
        return self.is_of_ours(other.term)

    # The configuration

    def reconfigure(
        self, record: JobRecord, now: float, addresses: tuple[tuple[int, str], ...] = ()
    ) -> None:
        """Write a new configuration if its contents have changed."""
        there = [a for a in self.rotation.agents if self._is_there(a, now)]
        new = voters(self.me, there)
        in_force = self.configuration.old or self.configuration.voters
        # If this head was the only voter, it has just agreed.
        old = None if new == in_force or in_force.members == {self.me} else in_force
        configuration = replace(self.configuration, voters=new, record=record, addresses=addresses)
        if configuration != self.configuration:
            for agent in there:
                if self._presences[agent].was_heard:
                    self._presences[agent].join(now)
            self._adopt(replace(configuration, old=old))

    def may_join(self, agent: int) -> bool:
        return agent in self.rotation and not self._presences[agent].has_configuration

    def _is_there(self, agent: int, now: float) -> bool:
        """Return whether the next configuration lists the agent."""
        other = self._presences[agent]
        if agent == self.me or other.is_given_up:
            return agent == self.me
        is_listed = agent in self.configuration.voters.members
        if is_listed and (other.has_configuration or not other.was_heard):
            return True
        if not other.has_configuration and agent in self.configuration.agents:
            return False  # another start of the agent is listed
        answers = not other.has_configuration or now < other.lease_start + self.timing.loss
        return answers and self.is_followed_by(other)

    def _adopt(self, configuration: Configuration) -> None:
        version = self.configuration.version + 1
        self.configuration = replace(configuration, version=version, tenure=self.tenure)
        self._up_to_date = set()  # not even this agent: its own follower votes like any other

    def note_answer(self, agent: int, version: int, now: float) -> list[Effect]:
        """Note an answer of an agent, which has this version of the configuration.

        While the lease does not hold, renew it once enough agents for a quorum have answered.
        """
        other = self._presences[agent]
        if agent not in self.rotation or not self.is_followed_by(other):
            return []
        if version >= self.configuration.version:
            self._up_to_date.add(agent)
        if other.answered.lease_start is None or self.holds(now):
            return []
        self._newly_answered.add(agent)
        if 2 * (len(self._newly_answered) + 1) < len(self.configuration.voters.members):
            return []
        self._newly_answered.clear()
        return self.renew(now)

    def drop_old_configuration(self, now: float) -> None:
        """Drop the old configuration if enough agents have the new one."""
        if self.configuration.old is None:
            return
        if replaces_old(self.configuration, self._up_to_date, self._dead, now):
            self._adopt(replace(self.configuration, old=None))

    def missing(self, now: float) -> list[int]:
        """Return the voters whose vote leases have ended, so that they may follow another head."""
        before = now - self.timing.vote_lease
        others = sorted(self.configuration.agents - {self.me})
        return [agent for agent in others if self._lease_start(agent) <= before]
