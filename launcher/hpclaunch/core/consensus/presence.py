"""Whether another agent is there, as the head sees it: a table of states.

The head renews an agent's **worker lease** with every order: its workers may run until the loss
timeout after the sending of its newest report that the head has answered. The head cannot have
heard that report before it was sent. So when it gives up a silent agent, that lease is over, and
the agent's fork server has ended the workers, even if the agent itself was stopped.
"""

from __future__ import annotations

import math
from enum import Enum

from ..protocol.timing import Timing
from .contact import Acknowledged, Contact


class PeerState(Enum):
    UNHEARD = "unheard"  # and nobody says that it is there
    EXPECTED = "expected"  # unheard by this head, but the last configuration has it
    HEARD = "heard"
    UNANSWERED = "unanswered"  # heard, but it answers nothing: its lease is not renewed
    LOST = "lost"  # given up; it may come back
    DEAD = "dead"  # proven: it follows nobody any more
    LOYAL = "loyal"  # dead, and it died within its vote lease: it will never follow another head


GIVEN_UP = {PeerState.LOST, PeerState.DEAD, PeerState.LOYAL}
PROVEN_DEAD = {PeerState.DEAD, PeerState.LOYAL}

TRANSITIONS = {
    PeerState.UNHEARD: {PeerState.EXPECTED, PeerState.HEARD, PeerState.LOST, PeerState.DEAD},
    PeerState.EXPECTED: {PeerState.HEARD, PeerState.LOST, PeerState.DEAD},
    PeerState.HEARD: {PeerState.UNANSWERED, PeerState.LOST, PeerState.DEAD, PeerState.LOYAL},
    PeerState.UNANSWERED: {PeerState.HEARD, PeerState.LOST, PeerState.DEAD, PeerState.LOYAL},
    PeerState.LOST: {PeerState.HEARD, PeerState.DEAD, PeerState.LOYAL},
    PeerState.DEAD: {PeerState.HEARD},  # one that was started anew
    PeerState.LOYAL: {PeerState.HEARD, PeerState.DEAD},
}


class Presence:
    """Of one agent. `why` says in words why it was given up."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.state = PeerState.UNHEARD
        self.why = ""
        self.term = -1  # the newest whose head it has followed
        self.contact = Contact()
        self.answered = Acknowledged()  # of what we have told it
        self._unanswered_since = math.inf

    @property
    def is_given_up(self) -> bool:
        return self.state in GIVEN_UP

    @property
    def is_dead(self) -> bool:
        return self.state in PROVEN_DEAD

    def _enter(self, state: PeerState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} is not followed by {state}"
        self.state = state

    # What is heard

    def hear(self, now: float, *, term: int, answers: int | None) -> None:
        """A message, whose sender had heard our message with the serial number `answers`; None
        where it follows another head. Who was given up stays so until `come_back`."""
        self.contact.hear(now)
        self.term = term
        news = answers is not None and self.answered.hear(answers)
        if self.state in (PeerState.UNHEARD, PeerState.EXPECTED) or (
            news and self.state is PeerState.UNANSWERED
        ):
            self._enter(PeerState.HEARD)

    def expect(self, now: float, *, within: float) -> None:
        """It is said to be there: it is given up unless it is heard within so many seconds."""
        self._enter(PeerState.EXPECTED)
        self.contact.hear(now - self.timing.loss + within)

    def start_anew(self) -> None:
        """Its agent was, by somebody: all that the last one had said is void."""
        self.contact, self.answered = Contact(), Acknowledged()

    def come_back(self) -> None:
        """It was given up, and is heard again."""
        self._enter(PeerState.HEARD)
        self.why = ""

    # What is not heard

    def deadline(self) -> float:
        """When to `check` again, if nothing more is heard."""
        if self.state is PeerState.UNHEARD or self.is_given_up:
            return math.inf
        if self.state is PeerState.UNANSWERED:
            return min(self._silent_at, self._unanswered_since + self.timing.loss)
        return min(self._silent_at, self._unanswered_at)

    @property
    def _silent_at(self) -> float:
        assert self.contact.heard is not None, "there is a deadline for those who were heard"
        return self.contact.heard + self.timing.loss

    @property
    def _unanswered_at(self) -> float:
        """An answer comes with a beat of its own."""
        if self.answered.at is None:
            return math.inf
        return self.answered.at + self.timing.loss + 2 * self.timing.beat

    def check(self, now: float) -> str:
        """Why it has to be given up; "" if it has not. One that is heard, but answers nothing, has
        to be as well once its lease is over, which is renewed no more."""
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
        """Not one that was heard after its host was asked."""
        unheard = self.state in (PeerState.UNHEARD, PeerState.EXPECTED)
        doubtful = unheard or self.is_given_up or self.contact.closed is not None
        return doubtful and not self.is_dead

    def die(self, now: float, why: str) -> None:
        """It is proven dead."""
        lease = self.answered.at is not None and now < self.answered.at + self.timing.vote_lease
        self._enter(PeerState.LOYAL if lease else PeerState.DEAD)
        self.why = self.why or why

    def leave(self, why: str) -> None:
        """It has said so itself, or others have proof."""
        if not self.is_dead:
            self._enter(PeerState.DEAD)
            self.why = self.why or why

    def bury(self) -> None:
        """What it had followed no longer counts: there is another configuration."""
        if self.state is PeerState.LOYAL:
            self._enter(PeerState.DEAD)
