"""The presence of another agent, as the head sees it: a state machine.

The head renews an agent's **worker lease** with every order. The agent counts the lease from the
moment it sent the newest report that the head has answered, which is earlier than the moment the
head heard it. The lease is no longer than the loss timeout. So when the head gives up a silent
agent, the lease has ended, and the agent's fork server holds or has killed the workers, even if the
agent itself was stopped.
"""

from __future__ import annotations

import math
from enum import Enum

from ..protocol.losses import Loss
from ..protocol.timing import Timing
from .contact import Acknowledged, Contact


class PeerState(Enum):
    UNHEARD = "unheard"  # never heard, and no other agent knows of it
    EXPECTED = "expected"  # not heard by this head yet, but the last configuration lists it
    HEARD = "heard"
    UNANSWERED = "unanswered"  # heard, but it answers no order: its lease is not renewed
    LOST = "lost"  # given up; it may come back
    DEAD = "dead"  # it is proven dead, or has left the job


# A tuple, which compares by identity: enums hash slowly, and this is read for each of many agents.
GIVEN_UP = (PeerState.LOST, PeerState.DEAD)

TRANSITIONS = {
    PeerState.UNHEARD: {PeerState.EXPECTED, PeerState.HEARD, PeerState.LOST, PeerState.DEAD},
    PeerState.EXPECTED: {PeerState.HEARD, PeerState.LOST, PeerState.DEAD},
    PeerState.HEARD: {PeerState.UNANSWERED, PeerState.LOST, PeerState.DEAD},
    PeerState.UNANSWERED: {PeerState.HEARD, PeerState.LOST, PeerState.DEAD},
    PeerState.LOST: {PeerState.HEARD, PeerState.DEAD},
    PeerState.DEAD: {PeerState.HEARD},  # another start of the agent
}


class Presence:
    """The presence of one agent."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.state = PeerState.UNHEARD
        self.loss: Loss | None = None  # why it was given up; None: it was not
        self.silent = 0.0  # for how long it had been silent then, in seconds
        self.term = -1  # the newest term whose head it has followed
        # Whether the newest start of the agent has a configuration, or is being sent its first. Of
        # the agents that can lead, only voters get one.
        self.has_configuration = False
        self._joined_at = -math.inf  # when this head gave it a vote
        # When the vote lease of an earlier start of the agent began; `-inf` unless that start was a
        # voter, and cannot live beside the newest one.
        self._last_lease_start = -math.inf
        # The end of the last vote lease of the start that a configuration lists; `inf` while that
        # start may be alive.
        self.vote_ends_at = math.inf
        self.contact = Contact()
        self.answered = Acknowledged()  # which of our orders it has answered
        self._unanswered_since = math.inf
        self._awake_since = -math.inf  # the end of this process's last pause

    @property
    def was_heard(self) -> bool:
        """Whether this head has heard any start of the agent."""
        return self.term >= 0

    @property
    def is_given_up(self) -> bool:
        return self.state in GIVEN_UP

    @property
    def is_dead(self) -> bool:
        return self.state is PeerState.DEAD

    @property
    def lease_start(self) -> float:
        """The start of its vote lease for this head; `-inf` if it has given none. An agent is bound
        once this head gives it a vote: nobody else can have sent it a configuration.
        """
        answered = self.answered.lease_start
        return self._joined_at if answered is None else max(answered, self._joined_at)

    @property
    def _voter_lease_start(self) -> float:
        """The beginning of the vote lease of the agent's newest start that was a voter."""
        return self.lease_start if self.has_configuration else self._last_lease_start

    @property
    def has_died(self) -> bool:
        """Whether the start that a configuration lists is proven dead. A later one may be alive."""
        return self.vote_ends_at < math.inf

    def _enter(self, state: PeerState) -> None:
        assert state in TRANSITIONS[self.state], f"an agent cannot go from {self.state} to {state}"
        self.state = state

    # The agent is heard

    def hear(self, now: float, *, term: int, version: int, answers: int | None) -> None:
        """Note a message of the agent, which has this version of the configuration; -1: none.
        `answers` is the serial number of the newest order that it answers; None if the agent
        follows another head. A message does not end the state LOST or DEAD: `come_back` does.
        """
        self.contact.hear(now)
        self.term = term
        self.has_configuration = self.has_configuration or version >= 0
        news = answers is not None and self.answered.hear(answers)
        if news and not self.has_configuration and self._last_lease_start > -math.inf:
            self._end_vote(now)
        if self.state in (PeerState.UNHEARD, PeerState.EXPECTED) or (
            news and self.state is PeerState.UNANSWERED
        ):
            self._enter(PeerState.HEARD)

    def expect(self, now: float) -> None:
        """Expect an agent that others know: its silence begins now."""
        self._enter(PeerState.EXPECTED)
        self.contact.hear(now)

    def start_anew(self, *, excludes_last: bool) -> None:
        """Forget the reports of the last start of the agent: a new one is heard.

        `excludes_last`: the two cannot live at the same time, so the last start is dead once the
        new one has answered an order. That proves the listed voter dead only if an earlier start
        was a voter that followed this head; otherwise the new start may be the listed one.
        """
        self._last_lease_start = self._voter_lease_start if excludes_last else -math.inf
        self.contact, self.answered = Contact(), Acknowledged()
        self.has_configuration, self._joined_at = False, -math.inf

    def come_back(self) -> None:
        """Take the agent back after it was given up."""
        self._enter(PeerState.HEARD)
        self.loss = None
        if self.has_configuration:
            self.vote_ends_at = math.inf

    def join(self, now: float) -> None:
        """Give this start of the agent a vote: the next configuration lists it."""
        if not self.has_configuration:
            self._joined_at = now
        self.has_configuration, self.vote_ends_at = True, math.inf

    def miss(self, seconds: float, now: float) -> None:
        """Move times back: leases continued while this process did not run for `seconds`."""
        self.answered.miss(seconds)
        self._joined_at -= seconds
        self._last_lease_start -= seconds
        self._awake_since = now

    # The agent is silent, or dead

    def deadline(self) -> float:
        """Return when to `check` again, if the agent is not heard before; `inf` for never."""
        if self.state is PeerState.UNHEARD or self.is_given_up:
            return math.inf
        silent_at = self.silent_at(self.timing.loss)
        if self.state is PeerState.UNANSWERED:
            return min(silent_at, self._unanswered_since + self.timing.loss)
        return min(silent_at, self._unanswered_at)

    def silent_at(self, seconds: float) -> float:
        """Return when the silence of the agent reaches `seconds`; `inf` if it is not awaited."""
        if self.state is PeerState.UNHEARD or self.is_given_up or self.contact.heard is None:
            return math.inf
        return self.contact.heard + seconds

    @property
    def _unanswered_at(self) -> float:
        # The next order is sent within a beat, and answered within another.
        if self.answered.lease_start is None:
            return math.inf
        since = max(self.answered.lease_start, self._awake_since)
        return since + self.timing.loss + 2 * self.timing.quiet_beat

    def check(self, now: float) -> Loss | None:
        """Return why the agent must be given up; None if it need not be.

        An agent that is heard but answers no order becomes UNANSWERED. Its lease is no longer
        renewed, and the agent must be given up when the lease has ended.
        """
        if now < self.deadline():
            return None
        if now >= self.silent_at(self.timing.loss):
            return Loss.SILENT
        if self.state is not PeerState.UNANSWERED:
            self._enter(PeerState.UNANSWERED)
            self._unanswered_since = now
            return None
        return Loss.UNANSWERED

    def give_up(self, now: float, loss: Loss) -> None:
        if not self.is_given_up:
            self._enter(PeerState.LOST)
            self.loss = loss
            self.silent = 0.0 if self.contact.heard is None else now - self.contact.heard

    def can_be_dead(self) -> bool:
        """Return whether to believe a probe that found the agent dead: False if it is heard."""
        unheard = self.state in (PeerState.UNHEARD, PeerState.EXPECTED)
        doubtful = unheard or self.is_given_up or self.contact.closed is not None
        return doubtful and not self.is_dead

    def die(self, now: float, loss: Loss) -> None:
        if self.is_dead:
            return
        self._enter(PeerState.DEAD)
        self._end_vote(now)
        self.loss = self.loss or loss

    def _end_vote(self, now: float) -> None:
        """Note that the start that a configuration lists is dead. If it died within its vote lease
        for this head, no other head can hold one. Otherwise another head may.
        """
        lease = self.timing.vote_lease
        ends_at = now if now < self._voter_lease_start + lease else now + lease
        self.vote_ends_at = min(self.vote_ends_at, ends_at)
