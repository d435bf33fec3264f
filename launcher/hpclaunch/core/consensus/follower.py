"""The follower's side of an election: the head that an agent follows, and whom it asks to lead.

If another head can be elected, all agents that have lost theirs ask the same agent to lead: the
head of the next term. If that one does not lead within the election timeout, they ask the head of
the term after it. An agent with an old term gets the newer one from the first agent that it asks.
Only the orders of a head bind a follower. Asking an agent to lead binds nobody, and ends as soon as
the old head is heard again.
"""

from __future__ import annotations

import math
from enum import Enum

from ..protocol.configuration import NOBODY, Configuration
from ..protocol.effects import Dial, Effect, Probe, Record
from ..protocol.facts import ElectionAwaited, HeadHeard, HeadSilent
from ..protocol.losses import Loss
from ..protocol.messages import Hint
from ..protocol.timing import Timing
from .contact import Heartbeat, LeaderLink
from .rotation import Rotation


class Standing(Enum):
    WAITING = "waiting"  # it has never heard a head
    FOLLOWING = "following"
    HEADLESS = "headless"  # its head is lost, and it may follow another
    LEADING = "leading"
    DEPOSED = "deposed"  # it leads, but without a quorum: another agent may lead by now


STANDINGS = {
    Standing.WAITING: {Standing.FOLLOWING},  # without a configuration it cannot be elected
    Standing.FOLLOWING: {Standing.HEADLESS},
    Standing.HEADLESS: {Standing.FOLLOWING, Standing.LEADING},
    Standing.LEADING: {Standing.DEPOSED},
    Standing.DEPOSED: {Standing.LEADING, Standing.FOLLOWING},
}


class Follower:
    """The view of one agent of who leads. `seeking` is the term whose head it asks to lead."""

    def __init__(
        self,
        rotation: Rotation,
        timing: Timing,
        index: int,
        *,
        elects: bool = True,
        anew: bool = False,
    ) -> None:
        """`anew`: this is the first agent, and an earlier start of it was killed. If others can
        lead, it does not lead before it has asked them who leads.
        """
        self.rotation, self.timing, self.index, self.elects = rotation, timing, index, elects
        self.knows_first_head = not anew or len(rotation) == 1
        self.term, self.head = 0, rotation.head_of(0 if self.knows_first_head else 1)
        self.standing = Standing.LEADING if self.leads else Standing.WAITING
        self.tenure = 0  # the term in which this head began to lead; it may raise its term later
        self.start = ""  # the incarnation of this head
        self.configuration: Configuration | None = None  # the newest one from a head
        self.seeking = NOBODY
        self.dead: dict[int, float] = {}  # agents that are proven dead, and since when
        self.link = LeaderLink(timing)
        # The agent connects to the first head by itself, without a Dial.
        dials = self.knows_first_head and not self.leads
        self._dialled: tuple[int, ...] = (self.head,) if dials else ()
        # How long to wait for a new head.
        self._headless_limit = max(timing.wait, timing.goodbye) if elects else 0.0
        self._hurried_at = math.inf  # when this agent was asked to end the job
        self._missed = False  # HeadSilent was recorded, and HeadHeard was not
        self._why_lost = ""
        self._lost_at = math.inf
        self._ask_next_at = math.inf  # when to ask the next agent to lead
        self._notice_at = math.inf  # when to record again that there is no head

    @property
    def leads(self) -> bool:
        return self.head == self.index

    @property
    def host(self) -> str:
        """The host of the head."""
        return self.rotation.host_of(self.head)

    @property
    def has_head(self) -> bool:
        return self.standing not in (Standing.WAITING, Standing.HEADLESS)

    @property
    def here(self) -> str:
        """The host of this agent."""
        return self.rotation.host_of(self.index)

    @property
    def report_to(self) -> tuple[int, ...]:
        """The agents that get our reports: the head, and the one that we ask to lead."""
        asked = () if self.seeking == NOBODY else (self.rotation.head_of(self.seeking),)
        return tuple(dict.fromkeys((self.head, *asked)))

    @property
    def is_deposed(self) -> bool:
        return self.standing is Standing.DEPOSED

    def is_free(self, now: float) -> bool:
        """Return whether this agent may follow another head: it is bound by no vote lease."""
        if self.leads:
            return self.is_deposed
        return not self.link.was_heard or now >= self.link.free_at()

    def next_deadline(self) -> float:
        match self.standing:
            case Standing.LEADING | Standing.DEPOSED:
                return self._ask_next_at
            case Standing.WAITING:
                return min(self.link.free_at(), self._ask_next_at)
            case Standing.FOLLOWING:
                return min(self.link.free_at(), self._miss_at, self._hurried_until)
            case Standing.HEADLESS:
                return min(self._ask_next_at, self._notice_at, self._give_up_at)

    def _enter(self, standing: Standing) -> None:
        if standing is not self.standing:
            known = standing in STANDINGS[self.standing]
            assert known, f"the standing cannot go from {self.standing} to {standing}"
            self.standing = standing

    def take_place(self, rotation: Rotation, index: int) -> None:
        """Replace the stand-in by the place that was given, before any head was followed."""
        assert self.standing is Standing.WAITING, "a place is given before the first order"
        self.rotation, self.index = rotation, index

    # Messages

    def hear(self, sender: int, beat: Heartbeat, address: str, now: float) -> bool:
        """Note a message of a head. Returns whether this agent must obey it; if so, the caller must
        call `head_found` next.
        """
        if sender != self.rotation.head_of(beat.term) or beat.term < self.term:
            return False
        if sender != self.head and not self.is_free(now):
            return False  # our own head still holds our vote lease
        if beat.tenure != self.tenure or self.start not in ("", beat.start):
            if self.elects and self._is_behind(beat.configuration):
                return False
            self._missed = self._missed and sender == self.head
            self.link = LeaderLink(self.timing)
        self.term, self.head, self.tenure, self.start = beat.term, sender, beat.tenure, beat.start
        if not self.link.hear(beat, address, now):
            return False
        if sender in self.dead:
            # A probe found the sender dead. It was started again since, or it sent this before it
            # died. Mark its connection as closed, so that `head_found` can probe it again.
            self.link.close(now)
        # Forget other deaths: an agent may have been started again in the same place.
        is_dead = self.link.is_dead and sender in self.dead
        self.dead = {sender: self.dead[sender]} if is_dead else {}
        known, new = self.configuration, beat.configuration
        if new is not None and (known is None or new.age > known.age):
            self.configuration = new
        return True

    def _is_behind(self, configuration: Configuration | None) -> bool:
        """Return whether this configuration of a head is older than ours."""
        known = self.configuration
        return known is not None and (configuration is None or configuration.age < known.age)

    def is_started_again(self, beat: Heartbeat) -> bool:
        """Return whether the head was started again, so that it does not know our round."""
        same = beat.tenure == self.tenure and beat.term >= self.term
        return same and self.link.was_heard and beat.start != self.start

    def head_found(self) -> list[Effect]:
        """Follow the head that was heard: ask no other agent to lead."""
        if not self.leads:
            self._enter(Standing.FOLLOWING)
        elif self.standing is not Standing.DEPOSED:
            self._enter(Standing.LEADING)
        self._lost_at = self._ask_next_at = self._notice_at = math.inf
        heard: list[Effect] = [Record(HeadHeard(self.here, self.host))] * self._missed
        self._missed = False
        was_seeking, self.seeking = self.seeking != NOBODY, NOBODY
        doubtful = was_seeking and self.link.is_closed and not self.leads
        return heard + self._dial() + [Probe(self.head)] * doubtful

    def hear_hint(self, sender: int, hint: Hint, now: float) -> list[Effect]:
        """Note a hint. Our own head sends one if it follows another head, which releases us from
        our vote lease. Other hints say which head to ask instead.
        """
        if sender == self.head and hint.led and hint.term > self.term and not self.is_free(now):
            self.link.is_released = True
            return self._lose_head(hint.term, Loss.STEPPED_DOWN.words(), now)
        if self.seeking == NOBODY or self.rotation.head_of(hint.term) in (self.index, self.head):
            return []
        if hint.led:
            return [] if hint.term == self.seeking else self._ask(hint.term, now)
        return self.seek(hint.term, now) if hint.term > self.seeking else []

    def agent_died(self, agent: int, now: float) -> list[Effect]:
        """Note that a probe has found the agent dead."""
        free = self.is_free(now)
        if agent == self.head and self.link.was_heard and not self.leads:
            if not (free or self.link.is_closed):
                return []  # the head was heard after the probe
            self.link.is_dead = True
        elif not free:
            return []  # an old probe, from before this head: the agent may have started again since
        self.dead.setdefault(agent, now)
        if self.seeking != NOBODY and self.rotation.head_of(self.seeking) == agent:
            return self.seek(self.seeking + 1, now)
        return [] if free else self.tick(now)

    # A head without a quorum

    def depose(self) -> None:
        """Lead without a quorum, until `reinstate` or until another head is heard."""
        self._enter(Standing.DEPOSED)

    def reinstate(self) -> list[Effect]:
        self._enter(Standing.LEADING)
        return self.head_found()

    # Without a head

    def tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self._miss_at <= now < self.link.free_at():
            self._missed = True
            silent, left = now - self.link.silent_at(0.0), self.link.free_at() - now
            effects.append(Record(HeadSilent(self.here, self.host, silent, left)))
        if self.standing is Standing.FOLLOWING and self.is_free(now):
            effects += self._lose_head(self.term + 1, self.link.evidence(now), now)
        elif self.standing is Standing.DEPOSED and self.seeking == NOBODY:
            effects += self.seek(self.term + 1, now)
        if now >= self._ask_next_at:
            effects += self.seek(self.seeking + 1, now)
        if now >= self._notice_at:
            self._notice_at = now + self.timing.next_notice
            left = self._give_up_at - now
            effects.append(Record(ElectionAwaited(self.here, self.host, self._why_lost, left)))
        return effects

    def _lose_head(self, term: int, why: str, now: float) -> list[Effect]:
        """Ask the head of `term`, or of a later term, to lead, since our head is lost."""
        self._enter(Standing.HEADLESS)
        self._missed = False
        self._why_lost = why
        self._lost_at = now
        self._notice_at = now + self.timing.headless_notice
        return self.seek(term, now)

    def look_for_head(self, now: float) -> list[Effect]:
        """Ask the others again, since the first head was never heard: one of them may lead by now.

        Forget deaths: an agent may have been started again in the same place.
        """
        self.dead.clear()
        return self.seek(self.term + 1, now)

    def seek(self, term: int, now: float) -> list[Effect]:
        """Ask an agent to lead: the head of `term`, or of the first later term whose head may be
        alive.
        """
        if not self.elects:
            return []
        passed_over = {*self.dead, self.head}
        for later in range(term, term + len(self.rotation)):
            if self.rotation.head_of(later) not in passed_over:
                return self._ask(later, now)
        self.seeking, self._ask_next_at = NOBODY, math.inf
        return self._dial()

    def _ask(self, term: int, now: float) -> list[Effect]:
        self.seeking = term
        self._ask_next_at = now + self.timing.election
        candidate = self.rotation.head_of(term)
        probed: tuple[int, ...] = () if candidate == self.index else (candidate,)
        probed += () if self.leads else (self.head,)  # the head may have died since the last probe
        return self._dial() + [Probe(agent) for agent in dict.fromkeys(probed)]

    def _dial(self) -> list[Effect]:
        wanted = tuple(agent for agent in self.report_to if agent != self.index)
        if wanted == self._dialled:
            return []
        self._dialled = wanted
        known = {} if self.configuration is None else dict(self.configuration.addresses)
        return [Dial(wanted, tuple(known.get(agent, "") for agent in wanted))]

    @property
    def _miss_at(self) -> float:
        """The time to record that the head is silent; `inf` unless this agent is next to lead."""
        is_next = self.rotation.head_of(self.term + 1) == self.index
        if not is_next or self._missed or self.standing is not Standing.FOLLOWING:
            return math.inf
        return self.link.silent_at(self.timing.silence_notice)

    def hurry(self, now: float) -> None:
        """Wait no longer than the goodbye timeout from now on: the job is about to end."""
        self._hurried_at = min(self._hurried_at, now)
        self._headless_limit = min(self._headless_limit, self.timing.goodbye)

    @property
    def _hurried_until(self) -> float:
        return max(self._hurried_at, self.link.silent_at(0.0)) + self.timing.goodbye

    @property
    def _give_up_at(self) -> float:
        return self._lost_at + self._headless_limit

    def why_given_up(self, now: float) -> str:
        """Return why this agent no longer waits for a head; "" while it waits, or has one."""
        if self.standing is Standing.FOLLOWING and now >= self._hurried_until:
            return f"the head on {self.host} was lost: {self.link.evidence(now)}"
        if self.standing is not Standing.HEADLESS:
            return ""
        nobody_left = self.seeking == NOBODY and self.link.is_dead
        if now < self._give_up_at and not nobody_left:
            return ""
        reason = f"the head on {self.host} was lost: {self._why_lost}"
        if not self.elects:
            reason += ". Without Slurm, a job ends with its first machine"
        elif len(self.rotation) > 1:
            reason += ", and too few agents are left to elect another"
        return reason
