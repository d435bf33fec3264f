"""An agent and the head it follows; once that one is lost, the agents that it asks to lead.

`seeking` is the term that it wants to begin. All who have lost their head ask the same agent, the
head of that term, until it leads or the election time-out is over, and then the one of the next
term; whoever is behind is told by the first that it asks. Only a head's order binds: asking is no
more than asking, and ends when the old head is heard again.
"""

from __future__ import annotations

import math

from ..protocol.configuration import Configuration
from ..protocol.effects import Dial, Effect, Probe, Say
from ..protocol.messages import Hint, Order
from ..protocol.model import EXIT_LOST, Job, Verdict
from .leader_link import LeaderLink
from .rotation import Line

NOBODY = -1


class Follower:
    def __init__(self, job: Job, line: Line, index: int) -> None:
        self.job, self.line, self.index = job, line, index
        self.term, self.head = 0, line.head_of(0)
        self.tenure = 0  # the term in which this head began; it may go on in a later one
        self.configuration: Configuration | None = None  # the newest that a head has told us
        self.seeking = NOBODY
        self.gone: set[int] = set()  # agents that are proven dead
        self.link = LeaderLink(job)
        # The first head is from the beginning.
        self._dialled: tuple[int, ...] = () if self.leads else (self.head,)
        self.deposed = False  # this agent leads, but has no quorum
        self._hurried = False
        self._why = ""  # the head was lost
        self._lost_since = math.inf
        self._next_at = math.inf
        self._notice_at = math.inf

    @property
    def leads(self) -> bool:
        return self.head == self.index

    @property
    def host(self) -> str:
        return self.job.places[self.head].host

    @property
    def asked(self) -> tuple[int, ...]:
        """To whom reports go."""
        if self.seeking == NOBODY:
            return (self.head,)
        return tuple(dict.fromkeys((self.head, self.line.head_of(self.seeking))))

    def is_lost(self, now: float) -> bool:
        """Whether we are free to follow another."""
        if self.leads:
            return self.deposed
        return not self.link.met or now >= self.link.given_up_at()

    def next_deadline(self) -> float:
        if self.leads:
            return self._next_at
        if self._lost_since == math.inf:
            return min(self.link.given_up_at(), self._next_at)
        return min(self._next_at, self._notice_at, self._end_at)

    # What is heard

    def hear(self, sender: int, order: Order, address: str, now: float) -> bool:
        """Whether it is to be obeyed."""
        if sender != self.line.head_of(order.term) or order.term < self.term:
            return False
        if sender != self.head and not self.is_lost(now):
            return False  # our word to the other head stands
        if order.tenure != self.tenure:
            self.link = LeaderLink(self.job)
            self.configuration = None  # two heads may have written rolls of the same version
        self.term, self.head, self.tenure = order.term, sender, order.tenure
        if not self.link.hear(order, address, now):
            return False
        # Hosts may have refused a connection to agents that came later.
        self.gone &= {sender} if self.link.gone else set()
        if order.configuration is not None and (
            not self.configuration or order.configuration.version > self.configuration.version
        ):
            self.configuration = order.configuration
        return True

    def found(self) -> list[Effect]:
        """There is a head, and nobody else is asked."""
        self._lost_since = self._next_at = self._notice_at = math.inf
        self.seeking = NOBODY
        return self._dial()

    def hint(self, sender: int, hint: Hint, now: float) -> list[Effect]:
        """Of one whom we asked: somebody leads, or it is further than we are. Or of our head: it
        follows another, and does not count on us."""
        if sender == self.head and hint.led and hint.term > self.term and not self.is_lost(now):
            self.link.released = True
            return self._lose(hint.term, "it leads no more", now)
        if self.seeking == NOBODY or self.line.head_of(hint.term) in (self.index, self.head):
            return []
        if hint.led:
            return [] if hint.term == self.seeking else self._ask(hint.term, now)
        return self.seek(hint.term, now) if hint.term > self.seeking else []

    def agent_gone(self, agent: int, now: float) -> list[Effect]:
        lost = self.is_lost(now)
        if agent == self.head and self.link.met and not self.leads:
            if not (lost or self.link.closed):
                return []  # it has been heard since
            self.link.gone = True
        elif not lost:
            return []  # it was asked about while we had no head, and may have come later
        self.gone.add(agent)
        if self.seeking != NOBODY and self.line.head_of(self.seeking) == agent:
            return self.seek(self.seeking + 1, now)
        return [] if lost else self.tick(now)

    # Without a head

    def tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self._lost_since == math.inf and self.is_lost(now) and (self.link.met or self.leads):
            why = self.link.evidence(now) if not self.leads else ""
            effects += self._lose(self.term + 1, why, now)
        if now >= self._next_at:
            effects += self.seek(self.seeking + 1, now)
        if now >= self._notice_at and not self.leads:
            self._notice_at = now + self.job.timing.next_notice
            left = self._end_at - now
            here = self.job.places[self.index].host
            said = f"{here} waits for a head: the one on {self.host} was lost ({self._why}), and "
            effects.append(Say(f"{said}there is no majority for another; {left:.0f} s more"))
        return effects

    def _lose(self, term: int, why: str, now: float) -> list[Effect]:
        """Our head; ask for that of this term, or a later one."""
        self._why = why
        self._lost_since = now
        self._notice_at = now + self.job.timing.headless_notice
        return self.seek(term, now)

    def look_around(self, now: float) -> list[Effect]:
        """The head was never heard: another may lead by now. Or some are only late, and their hosts
        refuse a connection until then."""
        self.gone.clear()
        return self.seek(self.term + 1, now)

    def seek(self, term: int, now: float) -> list[Effect]:
        """Ask the next agent to lead that may be alive, from this term on."""
        if self.job.one_head:
            return []
        for later in range(term, term + len(self.line)):
            if self.line.head_of(later) not in self.gone | {self.head}:
                return self._ask(later, now)
        self.seeking, self._next_at = NOBODY, math.inf
        return self._dial()

    def _ask(self, term: int, now: float) -> list[Effect]:
        self.seeking = term
        self._next_at = now + self.job.timing.election
        candidate = self.line.head_of(term)
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
        self._hurried = True

    @property
    def _end_at(self) -> float:
        wait = (
            self.job.timing.wait
            if self.job.one_head
            else max(self.job.timing.wait, self.job.timing.goodbye)
        )
        return self._lost_since + (min(wait, self.job.timing.goodbye) if self._hurried else wait)

    def verdict(self, now: float) -> Verdict | None:
        """Why there is no use in waiting any longer. A head decides that itself."""
        if self.leads or self._lost_since == math.inf:
            return None
        nobody = self.seeking == NOBODY and self.link.gone
        if now < self._end_at and not nobody:
            return None
        reason = f"the head on {self.host} was lost: {self._why}"
        if len(self.line) > 1 and not self.job.one_head:
            reason += ", and those who were left could not agree on another (too few of them)"
        return Verdict(EXIT_LOST, reason)
