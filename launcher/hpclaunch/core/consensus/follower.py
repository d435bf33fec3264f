"""An agent and the head that it follows; once that is lost, the agents that it asks to lead.

All who have lost their head ask the same agent, the head of the next term, until it leads or the
election timeout is over; then they ask the one of the term after that. An agent that is behind is
told so by the first one that it asks. Only an order of a head binds a follower: to ask binds
nobody, and ends as soon as the old head is heard again.
"""

from __future__ import annotations

import math
from enum import Enum

from ..protocol.configuration import NOBODY, Configuration
from ..protocol.effects import Dial, Effect, Probe, Say
from ..protocol.messages import Hint
from ..protocol.timing import Timing
from .leader_link import Heartbeat, LeaderLink
from .rotation import Rotation


class Standing(Enum):
    WAITING = "waiting"  # has never heard a head
    FOLLOWING = "following"
    HEADLESS = "headless"  # its head is lost; it may follow another
    LEADING = "leading"
    DEPOSED = "deposed"  # it leads, but has no quorum: another may lead by now


STANDINGS = {
    Standing.WAITING: {Standing.FOLLOWING, Standing.LEADING},
    Standing.FOLLOWING: {Standing.HEADLESS},
    Standing.HEADLESS: {Standing.FOLLOWING, Standing.LEADING},
    Standing.LEADING: {Standing.DEPOSED},
    Standing.DEPOSED: {Standing.LEADING, Standing.FOLLOWING},
}


class Follower:
    """`seeking` is the term that it wants to begin, or NOBODY."""

    def __init__(
        self, rotation: Rotation, timing: Timing, index: int, *, fixed_head: bool = False
    ) -> None:
        self.rotation, self.timing, self.index = rotation, timing, index
        self.fixed_head = fixed_head  # no other agent could be reached by all
        self.term, self.head = 0, rotation.head_of(0)
        self.standing = Standing.LEADING if self.leads else Standing.WAITING
        self.tenure = 0  # the term in which this head began; it may go on in a later one
        self.configuration: Configuration | None = None  # the newest that a head has told us
        self.seeking = NOBODY
        self.dead: set[int] = set()  # agents that are proven to be
        self.link = LeaderLink(timing)
        # The first head is from the beginning.
        self._dialled: tuple[int, ...] = () if self.leads else (self.head,)
        self._patience = timing.wait if fixed_head else max(timing.wait, timing.goodbye)
        self._why = ""  # the head was lost
        self._lost_at = math.inf
        self._next_at = math.inf  # when the next agent is asked
        self._notice_at = math.inf

    @property
    def leads(self) -> bool:
        return self.head == self.index

    @property
    def host(self) -> str:
        """That of the head."""
        return self.rotation.host_of(self.head)

    @property
    def asked(self) -> tuple[int, ...]:
        """To whom reports go."""
        if self.seeking == NOBODY:
            return (self.head,)
        return tuple(dict.fromkeys((self.head, self.rotation.head_of(self.seeking))))

    @property
    def is_deposed(self) -> bool:
        return self.standing is Standing.DEPOSED

    def is_free(self, now: float) -> bool:
        """Whether it may follow another head."""
        if self.leads:
            return self.is_deposed
        return not self.link.is_met or now >= self.link.free_at()

    def next_deadline(self) -> float:
        match self.standing:
            case Standing.LEADING | Standing.DEPOSED:
                return self._next_at
            case Standing.WAITING | Standing.FOLLOWING:
                return min(self.link.free_at(), self._next_at)
            case Standing.HEADLESS:
                return min(self._next_at, self._notice_at, self._hopeless_at)

    def _enter(self, standing: Standing) -> None:
        if standing is not self.standing:
            known = standing in STANDINGS[self.standing]
            assert known, f"{self.standing} is not followed by {standing}"
            self.standing = standing

    # What is heard

    def hear(self, sender: int, beat: Heartbeat, address: str, now: float) -> bool:
        """Whether it is to be obeyed; if so, `found` comes next."""
        if sender != self.rotation.head_of(beat.term) or beat.term < self.term:
            return False
        if sender != self.head and not self.is_free(now):
            return False  # the other head has our vote lease
        if beat.tenure != self.tenure:
            self.link = LeaderLink(self.timing)
            self.configuration = None  # two heads may have written different ones of one version
        self.term, self.head, self.tenure = beat.term, sender, beat.tenure
        if not self.link.hear(beat, address, now):
            return False
        # Hosts may have refused a connection to agents that came later.
        self.dead &= {sender} if self.link.is_dead else set()
        known, new = self.configuration, beat.configuration
        if new is not None and (known is None or new.version > known.version):
            self.configuration = new
        return True

    def found(self) -> list[Effect]:
        """There is a head, and nobody else is asked."""
        if not self.leads:
            self._enter(Standing.FOLLOWING)
        elif self.standing is not Standing.DEPOSED:
            self._enter(Standing.LEADING)
        self._lost_at = self._next_at = self._notice_at = math.inf
        self.seeking = NOBODY
        return self._dial()

    def hint(self, sender: int, hint: Hint, now: float) -> list[Effect]:
        """Of one that we asked: somebody leads, or it is further than we are. Or of our head: it
        follows another, and does not count on us."""
        if sender == self.head and hint.led and hint.term > self.term and not self.is_free(now):
            self.link.is_released = True
            return self._lose(hint.term, "it leads no more", now)
        if self.seeking == NOBODY or self.rotation.head_of(hint.term) in (self.index, self.head):
            return []
        if hint.led:
            return [] if hint.term == self.seeking else self._ask(hint.term, now)
        return self.seek(hint.term, now) if hint.term > self.seeking else []

    def agent_died(self, agent: int, now: float) -> list[Effect]:
        free = self.is_free(now)
        if agent == self.head and self.link.is_met and not self.leads:
            if not (free or self.link.is_closed):
                return []  # it has been heard since
            self.link.is_dead = True
        elif not free:
            return []  # it was asked about while we had no head, and may have come later
        self.dead.add(agent)
        if self.seeking != NOBODY and self.rotation.head_of(self.seeking) == agent:
            return self.seek(self.seeking + 1, now)
        return [] if free else self.tick(now)

    # A head without a quorum

    def depose(self) -> None:
        """Until `reinstate`, or until another is heard."""
        self._enter(Standing.DEPOSED)

    def reinstate(self) -> list[Effect]:
        self._enter(Standing.LEADING)
        return self.found()

    # Without a head

    def tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.standing is Standing.FOLLOWING and self.is_free(now):
            effects += self._lose(self.term + 1, self.link.evidence(now), now)
        elif self.standing is Standing.DEPOSED and self.seeking == NOBODY:
            effects += self.seek(self.term + 1, now)
        if now >= self._next_at:
            effects += self.seek(self.seeking + 1, now)
        if now >= self._notice_at:
            self._notice_at = now + self.timing.next_notice
            here, left = self.rotation.host_of(self.index), self._hopeless_at - now
            said = f"{here} waits for a head: the one on {self.host} was lost ({self._why}), and "
            effects.append(Say(f"{said}there is no majority for another; {left:.0f} s more"))
        return effects

    def _lose(self, term: int, why: str, now: float) -> list[Effect]:
        """Our head; ask for that of this term, or a later one."""
        self._enter(Standing.HEADLESS)
        self._why = why
        self._lost_at = now
        self._notice_at = now + self.timing.headless_notice
        return self.seek(term, now)

    def look_around(self, now: float) -> list[Effect]:
        """The head was never heard: another may lead by now. Or some are only late, and their hosts
        refuse a connection until then."""
        self.dead.clear()
        return self.seek(self.term + 1, now)

    def seek(self, term: int, now: float) -> list[Effect]:
        """Ask the next agent to lead that may be alive, from this term on."""
        if self.fixed_head:
            return []
        for later in range(term, term + len(self.rotation)):
            if self.rotation.head_of(later) not in self.dead | {self.head}:
                return self._ask(later, now)
        self.seeking, self._next_at = NOBODY, math.inf
        return self._dial()

    def _ask(self, term: int, now: float) -> list[Effect]:
        self.seeking = term
        self._next_at = now + self.timing.election
        candidate = self.rotation.head_of(term)
        probe = () if candidate == self.index else (candidate,)
        others = () if self.leads else (self.head,)  # it may have died since
        return self._dial() + [Probe(agent) for agent in dict.fromkeys((*probe, *others))]

    def _dial(self) -> list[Effect]:
        wanted = tuple(agent for agent in self.asked if agent != self.index)
        if wanted == self._dialled:
            return []
        self._dialled = wanted
        return [Dial(wanted)]

    def hurry(self) -> None:
        """The job is to end, whoever leads."""
        self._patience = min(self._patience, self.timing.goodbye)

    @property
    def _hopeless_at(self) -> float:
        return self._lost_at + self._patience

    def gives_up(self, now: float) -> str:
        """Why there is no use in waiting any longer for a head; "" if there is."""
        if self.standing is not Standing.HEADLESS:
            return ""
        nobody = self.seeking == NOBODY and self.link.is_dead
        if now < self._hopeless_at and not nobody:
            return ""
        reason = f"the head on {self.host} was lost: {self._why}"
        if len(self.rotation) > 1 and not self.fixed_head:
            reason += ", and those who were left could not agree on another (too few of them)"
        return reason
