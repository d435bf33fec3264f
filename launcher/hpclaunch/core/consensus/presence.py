"""Whether another agent is there, as the head sees it: a table of states.

The head renews an agent's **worker lease** with every order. The agent counts the lease from the
moment it sent the newest report that the head has answered, and the lease is no longer than the
loss timeout. The head cannot have heard that report before it was sent. So when the head gives up a
silent agent, the lease is over, and the agent's fork server has ended the workers, even if the
agent itself was stopped.
"""

from __future__ import annotations

import math
from enum import Enum

from ..protocol.timing import Timing
from .contact import Acknowledged, Contact


class PeerState(Enum):
    UNHEARD = "unheard"  # never heard, and no other agent knows of it
    EXPECTED = "expected"  # not heard by this head yet, but the last configuration lists it
    HEARD = "heard"
    UNANSWERED = "unanswered"  # heard, but it answers no order: its lease is not renewed
    LOST = "lost"  # given up; it may come back
    DEAD = "dead"  # proven dead: it follows no head any more
    DEAD_IN_LEASE = "dead_in_lease"  # it died within its vote lease, and counts as our follower


GIVEN_UP = {PeerState.LOST, PeerState.DEAD, PeerState.DEAD_IN_LEASE}
PROVEN_DEAD = {PeerState.DEAD, PeerState.DEAD_IN_LEASE}

TRANSITIONS = {
    PeerState.UNHEARD: {PeerState.EXPECTED, PeerState.HEARD, PeerState.LOST, PeerState.DEAD},
    PeerState.EXPECTED: {PeerState.HEARD, PeerState.LOST, PeerState.DEAD},
    PeerState.HEARD: {
        PeerState.UNANSWERED,
        PeerState.LOST,
        PeerState.DEAD,
        PeerState.DEAD_IN_LEASE,
    },
    PeerState.UNANSWERED: {
        PeerState.HEARD,
        PeerState.LOST,
        PeerState.DEAD,
        PeerState.DEAD_IN_LEASE,
    },
    PeerState.LOST: {PeerState.HEARD, PeerState.DEAD, PeerState.DEAD_IN_LEASE},
    PeerState.DEAD: {PeerState.HEARD},  # an agent that was started anew in its place
    PeerState.DEAD_IN_LEASE: {PeerState.HEARD, PeerState.DEAD},
}


class Presence:
    """The presence of one agent. `why` says in words why it was given up; "" if it was not."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.state = PeerState.UNHEARD
        self.why = ""
        self.term = -1  # the newest term whose head it has followed
        # When it was heard first, if it had no configuration then, and so has followed nobody; -inf
        # if it had one, or was not heard yet.
        self.came_at = -math.inf
        self._is_known = False
        self.is_first = True  # no other agent was in its place before, as far as is known
        self.contact = Contact()
        self.answered = Acknowledged()  # which of our orders it has answered
        self._unanswered_since = math.inf
        self._awake_since = -math.inf  # when this process began to run again, the last time

    @property
    def is_given_up(self) -> bool:
        return self.state in GIVEN_UP

    @property
    def is_dead(self) -> bool:
        return self.state in PROVEN_DEAD

    def _enter(self, state: PeerState) -> None:
        assert state in TRANSITIONS[self.state], f"an agent cannot go from {self.state} to {state}"
        self.state = state

    # The agent is heard

    def hear(self, now: float, *, term: int, version: int, answers: int | None) -> None:
        """A message came from the agent, which has this version of the configuration; -1: none.
        `answers` is the serial number of the newest order that it answers; None if the agent
        follows another head. An agent that was given up stays given up until `come_back`.
        """
        self.contact.hear(now)
        self.term = term
        if not self._is_known and version < 0:
            self.came_at = now
        self._is_known = True
        news = answers is not None and self.answered.hear(answers)
        if self.state in (PeerState.UNHEARD, PeerState.EXPECTED) or (
            news and self.state is PeerState.UNANSWERED
        ):
            self._enter(PeerState.HEARD)

    def expect(self, now: float, *, within: float) -> None:
        """Others know the agent. It is given up if it is not heard `within` this many seconds."""
        self._enter(PeerState.EXPECTED)
        self.contact.hear(now - self.timing.loss + within)

    def start_anew(self) -> None:
        """A new agent was started in this place. What the last one said no longer holds."""
        self.contact, self.answered = Contact(), Acknowledged()
        self.came_at, self._is_known, self.is_first = -math.inf, False, False

    def come_back(self) -> None:
        """The agent was given up, and is taken back."""
        self._enter(PeerState.HEARD)
        self.why = ""

    def miss(self, seconds: float, now: float) -> None:
        """This process did not run for so long, until now."""
        self.answered.miss(seconds)
        self._awake_since = now

    # The agent is silent, or dead

    def deadline(self) -> float:
        """Return when to `check` again, if the agent is not heard before; `inf` for never."""
        if self.state is PeerState.UNHEARD or self.is_given_up:
            return math.inf
        if self.state is PeerState.UNANSWERED:
            return min(self._silent_at, self._unanswered_since + self.timing.loss)
        return min(self._silent_at, self._unanswered_at)

    def silent_at(self, seconds: float) -> float:
        """Return when the agent will have been silent for so long; `inf` if nobody misses it."""
        if self.state is PeerState.UNHEARD or self.is_given_up or self.contact.heard is None:
            return math.inf
        return self.contact.heard + seconds

    @property
    def _silent_at(self) -> float:
        return self.silent_at(self.timing.loss)

    @property
    def _unanswered_at(self) -> float:
        # Up to a beat passes before the next order is sent, and another before it is answered.
        if self.answered.lease_start is None:
            return math.inf
        since = max(self.answered.lease_start, self._awake_since)
        return since + self.timing.loss + 2 * self.timing.quiet_beat

    def check(self, now: float) -> str:
        """Return why the agent must be given up; "" if it need not be.

        An agent that is heard but answers no order becomes UNANSWERED. Its lease is no longer
        renewed, and it must be given up when that is over.
        """
        if now < self.deadline():
            return ""
        if now >= self._silent_at:
            return self.contact.evidence(now, dead=False)
        if self.state is not PeerState.UNANSWERED:
            self._enter(PeerState.UNANSWERED)
            self._unanswered_since = now
            return ""
        return "nothing reaches it"

    def give_up(self, why: str) -> None:
        if not self.is_given_up:
            self._enter(PeerState.LOST)
            self.why = why

    def can_be_dead(self) -> bool:
        """Whether to believe a probe that found the agent dead: not if it was heard after that."""
        unheard = self.state in (PeerState.UNHEARD, PeerState.EXPECTED)
        doubtful = unheard or self.is_given_up or self.contact.closed is not None
        return doubtful and not self.is_dead

    def die(self, now: float, why: str) -> None:
        """The agent is proven dead."""
        start = self.answered.lease_start
        has_lease = start is not None and now < start + self.timing.vote_lease
        self._enter(PeerState.DEAD_IN_LEASE if has_lease else PeerState.DEAD)
        self.why = self.why or why

    def leave(self, why: str) -> None:
        """The agent has said that it leaves, or other agents have proof that it is dead."""
        if not self.is_dead:
            self._enter(PeerState.DEAD)
            self.why = self.why or why

    def end_vote_lease(self) -> None:
        """The vote of a dead agent counts no longer: a new configuration is in force."""
        if self.state is PeerState.DEAD_IN_LEASE:
            self._enter(PeerState.DEAD)
