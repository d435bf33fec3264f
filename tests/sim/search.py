# ruff: noqa: T201 -- a command that talks to its user
"""Search all orders of a bounded number of events for two heads at once.

    python tests/sim/search.py                                 a few minutes
    python tests/sim/search.py --agents 5 --replay HISTORY     one history

Each start of an agent is made of the real parts that decide who leads; nothing trains. Time passes
in steps of a third of the vote lease (`pass`). Between two of these, all of the following happens
in any order. Agents that are cut off from one another are those that exchange no message.

    talk A H     A reports to H, is answered, and reports its news
    hear A H     the same, and its news is lost
    ask A H      the answer is lost
    order H A    the head H sends A an order
    keep A H     A's report to H is late; `hold H A`: an order is
    arrive N     message N of those that are late arrives
    beat H       the head H does what it does at every beat
    kill A, start A: A dies; it is started again
    prove A B    B has proof that A is dead
    doubt A B    the same, and the proof is late

A, B and H are processes. The first ones are the agents, by their places. Each of the others, the
twins, is another start in one of these places. Its claim differs, or no claims are known, so that
both may live at once.
"""

from __future__ import annotations

import argparse
import copyreg
import io
import math
import pickle
import sys
import time
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any, ClassVar, NamedTuple

from hpclaunch.core.consensus.election import Candidate, Election
from hpclaunch.core.consensus.follower import Follower, Standing
from hpclaunch.core.consensus.leader_lease import LeaderLease
from hpclaunch.core.consensus.presence import Presence
from hpclaunch.core.consensus.rotation import Rotation
from hpclaunch.core.protocol.configuration import NOBODY, Configuration, JobRecord
from hpclaunch.core.protocol.effects import Effect, Send
from hpclaunch.core.protocol.losses import Loss
from hpclaunch.core.protocol.messages import Hint
from hpclaunch.core.protocol.model import Place
from hpclaunch.core.protocol.timing import Timing
from hpclaunch.core.protocol.values import value
from hpclaunch.system.network.death_inquiries import LOOKS

TIMING = Timing()
QUANTUM = TIMING.vote_lease / 3
OLD = -1.5 * TIMING.vote_lease  # all times before that are alike
RECORD = JobRecord(round=0)


class BrokenLawError(Exception):
    pass


@value(frozen=True)
class Ballot:
    """The fields of a report that decide who leads."""

    incarnation: str
    serial: int
    heard: int
    term: int
    seeking: int
    version: int
    configuration: Configuration | None
    claim: str


@value(frozen=True)
class Beat:
    """The fields of an order that decide who leads."""

    incarnation: str
    serial: int
    term: int
    tenure: int
    start: str
    heard: int
    configuration: Configuration | None
    keep: float = 0.0


class Proof(NamedTuple):
    """The host of the sender says that it is dead. An inquiry waits no longer than `until`."""

    until: float


Message = Ballot | Beat | Hint | Proof


class Kept(NamedTuple):
    """A message on its way."""

    sender: int  # the number of a process, as is `to`
    to: int
    message: Message


@cache
def rotation_of(agents: int) -> Rotation:
    return Rotation(tuple(Place(i, i, f"n{i}") for i in range(agents)))


class Start:
    """One start of an agent, put together as core/control.py and core/head/head.py do it."""

    def __init__(self, agents: int, place: int, number: int, claim: str = "") -> None:
        self.place, self.name, self.claim = place, f"{place}{'abcdef'[number]}", claim
        self.rotation = rotation_of(agents)
        anew = place == 0 and number > 0
        self.follower = Follower(self.rotation, TIMING, place, anew=anew)
        self.candidate: Candidate[Ballot] = Candidate(self.follower)
        self.lease: LeaderLease | None = None
        self.presences: list[Presence] = []
        self.reports: dict[int, Ballot] = {}
        self.term, self.led_since = 0, 0.0
        self.reported = self.ordered = 0  # serial numbers
        if self.follower.leads:
            self.lead(None, 0.0)

    def lead(self, election: Election[Ballot] | None, now: float) -> None:
        self.presences = [Presence(TIMING) for _ in range(len(self.rotation))]
        self.reports = {}
        configuration = None if election is None else election.configuration
        self.term = 0 if election is None else election.term
        self.led_since = now
        common = (self.rotation, TIMING, self.place, self.presences, configuration, self.term)
        self.lease = LeaderLease(*common)
        if election is not None:
            self.take_over(election, now)
        self.lease.renew(now)
        self.order_own(now)

    def order_own(self, now: float) -> None:
        """Between a head and its own agent no message is lost."""
        self.hear_order(self.place, self.order(self.place, now), now)
        if self.lease is not None:
            self.hear_report(self.place, self.report(), now)

    def take_over(self, election: Election[Ballot], now: float) -> None:
        for agent, presence in enumerate(self.presences):
            if agent in election.votes:
                vote = election.votes[agent]
                presence.hear(now, term=vote.term, version=vote.version, answers=None)
                self.reports[agent] = vote
            elif agent in election.dead:
                presence.die(election.dead[agent], Loss.ENDED)
            elif agent != election.old and agent in election.configuration.agents:
                presence.expect(now)
            else:
                presence.give_up(now, Loss.EARLIER)

    # Messages

    def report(self) -> Ballot:
        self.reported += 1
        follower = self.follower
        known = follower.configuration
        return Ballot(
            self.name,
            self.reported,
            follower.link.newest,
            follower.term,
            follower.seeking,
            -1 if known is None else known.version,
            known if follower.seeking != NOBODY else None,
            self.claim,
        )

    def order(self, to: int, now: float) -> Beat:
        assert self.lease is not None
        report = self.reports.get(to)
        if report is None:
            report = self.report()
        self.ordered += 1
        configuration = self.lease.configuration
        has_none = not self.presences[to].has_configuration
        has_it = report.version >= configuration.version and report.term >= self.lease.tenure
        self.presences[to].answered.send(self.ordered, now)
        return Beat(
            report.incarnation,
            self.ordered,
            self.term,
            self.lease.tenure,
            self.name,
            report.serial,
            None if has_it or has_none else configuration,
        )

    def hear(self, sender: int, message: Message, now: float) -> list[Message]:
        """Hear a message from a place. Returns the answers."""
        led = self.lease is not None
        answers: list[Message] = []
        match message:
            case Ballot() as ballot:
                answers = self.hear_report(sender, ballot, now)
            case Beat() as beat if beat.incarnation == self.name:
                self.hear_order(sender, beat, now)
            case Hint() as hint:
                answers = hints(self.follower.hear_hint(sender, hint, now))
            case Proof(until) if now < until:
                self.hear_proof(sender, now)
                return []
            case _:
                return []
        self.decide(now)
        if self.lease is not None and not led:
            answers = [self.order(sender, now)]
        return answers

    def hear_order(self, sender: int, beat: Beat, now: float) -> None:
        if self.follower.hear(sender, beat, "", now):
            self.follower.head_found()
        if self.lease is not None and not self.follower.leads:
            self.lease = None
            self.presences, self.reports = [], {}

    def hear_report(self, sender: int, ballot: Ballot, now: float) -> list[Message]:
        lease = self.lease
        if lease is None:
            return hints(self.candidate.hear(sender, ballot, now))
        presence, known = self.presences[sender], self.reports.get(sender)
        if known is not None and known.incarnation != ballot.incarnation:
            if not presence.is_given_up:
                return []
            presence.start_anew(excludes_last=ballot.claim != "" and ballot.claim == known.claim)
            known = None
        if known is not None and ballot.serial <= known.serial:
            return []
        answers = ballot.heard if lease.is_of_ours(ballot.term) else None
        presence.hear(now, term=ballot.term, version=ballot.version, answers=answers)
        self.reports[sender] = ballot
        if ballot.term > self.term and lease.holds(now):
            self.term = self.rotation.next_term(ballot.term, self.place)
        lease.note_answer(sender, ballot.version, now)
        if presence.is_given_up:
            presence.come_back()
        return [self.order(sender, now)]

    # Time, and what follows from it

    def beat(self, now: float) -> None:
        lease = self.lease
        if lease is None:
            return
        for agent, presence in enumerate(self.presences):
            if agent != self.place and (loss := presence.check(now)):
                presence.give_up(now, loss)
            elif agent == self.place:
                presence.contact.hear(now)
        lease.renew(now)
        if lease.holds(now):
            version = lease.configuration.version
            lease.reconfigure(RECORD, now)
            lease.drop_old_configuration(now)
            if lease.configuration.version > version:
                self.order_own(now)
        self.decide(now)

    def tick(self, now: float) -> None:
        self.beat(now)
        self.follower.tick(now)
        self.decide(now)

    def reaches(self) -> Collection[int]:
        """The agents to which it may report: one that has heard nobody yet asks all
        by turns that it does not know to be dead.
        """
        if self.follower.standing is Standing.WAITING:
            living = set(self.rotation.agents).difference(self.follower.dead)
            return {self.follower.head, *living}
        return self.follower.report_to

    def report_to(self, agent: int, now: float) -> Ballot:
        follower = self.follower
        while agent not in follower.report_to:
            term = follower.term if follower.seeking == NOBODY else follower.seeking
            follower.seek(term + 1, now)
        return self.report()

    def asks_after(self, agent: int) -> bool:
        """Return whether this start may ask if the agent is dead."""
        follower = self.follower
        asked = {follower.head}
        if follower.seeking != NOBODY:
            asked.add(self.rotation.head_of(follower.seeking))
        return agent in (self.reports if self.lease is not None else asked)

    def ask_after(self, agent: int, now: float) -> str:
        """Check on an agent whose connection was closed, or which is asked to lead.

        Returns the name of the start that is asked about. It is "" for any start of the agent: only
        a head knows names, and not that of an agent that it asks to lead.
        """
        if self.lease is not None:
            self.presences[agent].contact.close(now)
        if agent == self.follower.head:
            self.follower.link.close(now)
        known, seeking = self.reports.get(agent), self.follower.seeking
        is_asked = seeking != NOBODY and self.rotation.head_of(seeking) == agent
        return "" if known is None or is_asked else known.incarnation

    def hear_proof(self, agent: int, now: float) -> None:
        if self.lease is not None and self.presences[agent].can_be_dead():
            self.presences[agent].die(now, Loss.EXITED)
            self.lease.renew(now)
        self.follower.agent_died(agent, now)
        self.decide(now)

    def decide(self, now: float) -> None:
        follower = self.follower
        if self.lease is not None:
            if now >= max(self.lease.until, self.led_since + TIMING.loss):
                follower.depose()
            elif follower.is_deposed:
                follower.reinstate()
            return
        if follower.seeking != NOBODY and self.rotation.head_of(follower.seeking) == self.place:
            self.candidate.hear(self.place, self.report(), now)
        election = self.candidate.elected(now)
        if election is not None:
            self.lead(election, now)

    def holds(self, now: float) -> bool:
        return self.lease is not None and self.lease.holds(now)


def hints(effects: list[Effect]) -> list[Message]:
    sent = (effect.message for effect in effects if isinstance(effect, Send))
    return [message for message in sent if isinstance(message, Hint)]


class Limits(NamedTuple):
    """The number of times that each of these may happen in a history."""

    kills: int = 1
    starts: int = 1
    kept: int = 1


class Cluster:
    """All agents, and the messages that are kept on their way."""

    def __init__(
        self,
        agents: int,
        limits: Limits,
        *,
        absent: int = 0,
        twins: tuple[int, ...] = (),
        claims: bool = True,
    ) -> None:
        """The others follow the first one. The last `absent` agents are not started yet, and
        neither are the twins, each of which has a place of the others. `claims`: they are known.
        """
        self.now, self.size, self.limits, self.claims = 0.0, agents, limits, claims
        there = agents - absent
        self.places = (*range(agents), *twins)  # by process
        self.starts: list[Start | None] = [None] * len(self.places)
        self.names = [""] * len(self.places)  # of the last start of each process; "" before that
        self.numbers = [0] * agents  # starts so far, by place
        self.post: list[Kept] = []
        for i in range(there):
            self.start(i)
        for _ in range(3):
            for i in range(1, there):
                self.do(("talk", i, 0))
            self.do(("beat", 0))

    def start(self, process: int) -> None:
        place, claim = self.places[process], f"{process}" if self.claims else ""
        start = Start(self.size, place, self.numbers[place], claim)
        self.starts[process], self.names[process] = start, start.name
        self.numbers[place] += 1

    def __getitem__(self, process: int) -> Start:
        start = self.starts[process]
        assert start is not None, f"process {process} is not there"
        return start

    def heads(self) -> list[str]:
        return [s.name for s in self.starts if s is not None and s.holds(self.now)]

    def actions(self) -> Iterator[tuple[Any, ...]]:
        yield ("pass",)
        there = [(number, s) for number, s in enumerate(self.starts) if s is not None]
        for a, start in there:
            reaches = start.reaches()
            for h, head in there:
                if head.place in reaches and head.place != start.place:
                    yield ("talk", a, h)
                    yield ("hear", a, h)
                    yield ("ask", a, h)
                    if self.limits.kept:
                        yield ("keep", a, h)
            if start.lease is not None:
                yield ("beat", a)
                for to, other in there:
                    if other.place in start.reports and other.place != start.place:
                        yield ("order", a, to)
                        if self.limits.kept:
                            yield ("hold", a, to)
            if self.limits.kills:
                yield ("kill", a)
        for number in range(len(self.post)):
            yield ("arrive", number)
        for number, (dead, place) in enumerate(zip(self.starts, self.places, strict=True)):
            if dead is None:
                if self.limits.starts or not self.numbers[place]:
                    yield ("start", number)
                if self.names[number]:
                    for a, start in there:
                        if start.place != place:
                            yield ("prove", number, a)
                            if self.limits.kept and start.asks_after(place):
                                yield ("doubt", number, a)

    def do(self, action: tuple[Any, ...]) -> None:
        """Raises BrokenLawError if two heads lead after it, or one has lost its lease by it."""
        before = set(self.heads())
        match action:
            case ("pass",):
                self.now += QUANTUM
                for start in self.starts:
                    if start is not None:
                        start.tick(self.now)
            case ("talk", a, h):
                self.deliver(Kept(a, h, self.report(a, h)), answers=True)
                if self.places[h] in self[a].follower.report_to:  # it has news at once
                    self.deliver(Kept(a, h, self[a].report()), answers=True)
            case ("hear", a, h):
                self.deliver(Kept(a, h, self.report(a, h)), answers=True)
            case ("ask", a, h):
                self.deliver(Kept(a, h, self.report(a, h)), answers=False)
            case ("keep", a, h):
                self.limits = self.limits._replace(kept=self.limits.kept - 1)
                self.post.append(Kept(a, h, self.report(a, h)))
            case ("beat", h):
                self[h].beat(self.now)
            case ("order", h, a):
                self.deliver(Kept(h, a, self[h].order(self.places[a], self.now)), answers=False)
            case ("hold", h, a):
                self.limits = self.limits._replace(kept=self.limits.kept - 1)
                self.post.append(Kept(h, a, self[h].order(self.places[a], self.now)))
            case ("arrive", number):
                self.deliver(self.post.pop(number), answers=False)
            case ("kill", a):
                self.limits = self.limits._replace(kills=self.limits.kills - 1)
                self.starts[a] = None
            case ("start", a):
                if self.numbers[self.places[a]]:
                    self.limits = self.limits._replace(starts=self.limits.starts - 1)
                self.start(a)
            case ("prove", dead, a):
                if self.asks_after(dead, a):
                    self[a].hear_proof(self.places[dead], self.now)
            case ("doubt", dead, a):
                self.limits = self.limits._replace(kept=self.limits.kept - 1)
                if self.asks_after(dead, a):
                    self.post.append(Kept(dead, a, Proof(self.now + LOOKS[-1])))
        after = self.heads()
        if len(after) > 1:
            raise BrokenLawError(f"{' and '.join(after)} lead at the same time")
        if max(self.numbers) > 1:
            return  # another start of an agent ends what the last one had given
        for start in self.starts:
            name = None if start is None or start.lease is None else start.name
            if action != ("pass",) and name in before and name not in after:
                raise BrokenLawError(f"{name} has lost its lease, and no time has passed")

    def report(self, a: int, h: int) -> Ballot:
        return self[a].report_to(self.places[h], self.now)

    def asks_after(self, dead: int, a: int) -> bool:
        """Let `a` ask about the place of a dead start. Return whether a proof answers."""
        return self[a].ask_after(self.places[dead], self.now) in ("", self.names[dead])

    def deliver(self, kept: Kept, *, answers: bool) -> None:
        to = self.starts[kept.to]
        if to is None:
            return
        for answer in to.hear(self.places[kept.sender], kept.message, self.now):
            if answers and (back := self.starts[kept.sender]) is not None:
                back.hear(to.place, answer, self.now)

    # The canonical form

    def key(self) -> tuple[Any, ...]:
        """Return the form of the cluster on which its future depends."""
        return Form(self).key()


# Fields that decide nothing, never change, or are taken into account otherwise.
LEFT_OUT = {
    *("rotation", "timing", "me", "index", "elects", "_elects", "_presences", "link", "contact"),
    *("answered", "loss", "silent", "_why_lost", "_dialled", "_missed", "_lost_at", "_notice_at"),
    *("_hurried_at", "_headless_limit", "_awake_since"),
}


class Form:
    """The form of a cluster on which its future depends. Times are relative to now, and serial
    numbers to each other.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def key(self) -> tuple[Any, ...]:
        c = self.cluster
        return (
            tuple(self.of_start(s) for s in c.starts),
            tuple(c.names),
            tuple(c.numbers),
            c.limits,
            tuple(self.of_kept(k) for k in c.post),
        )

    def at(self, t: float | None) -> float | None:
        if t is None or math.isinf(t):
            return t
        return round(max(t - self.cluster.now, OLD), 3)

    def of_fields(self, thing: Any) -> tuple[Any, ...]:
        named = vars(thing).items()
        return tuple(self.of_field(each) for name, each in named if name not in LEFT_OUT)

    def of_field(self, each: Any) -> Any:
        if isinstance(each, dict):
            return tuple((name, self.of_field(item)) for name, item in sorted(each.items()))
        if isinstance(each, float):
            return self.at(each)
        return frozenset(each) if isinstance(each, set) else each

    def of_start(self, start: Start | None) -> tuple[Any, ...] | None:
        if start is None:
            return None
        link = start.follower.link
        mine = (
            start.name,
            self.of_fields(start.follower),
            (link.is_dead, link.is_released, link.is_closed, self.at(link.silent_at(0.0))),
            self.of_ballots(start),
        )
        return mine if start.lease is None else (*mine, *self.of_head(start, start.lease))

    def of_ballots(self, start: Start) -> tuple[Any, ...]:
        """Return the ballots that may still count."""
        return tuple(
            (agent, b.seeking, b.term, b.configuration, self.at(at))
            for agent, (at, b) in sorted(start.candidate._ballots.items())
            if self.cluster.now < at + TIMING.loss and b.seeking != NOBODY
        )

    def of_head(self, start: Start, lease: LeaderLease) -> tuple[Any, ...]:
        presences = tuple(self.of_presence(start, a) for a in range(self.cluster.size))
        own = (start.term, self.at(start.led_since))
        return (own, self.of_fields(lease), presences)

    def of_presence(self, start: Start, agent: int) -> tuple[Any, ...]:
        if agent == start.place:
            return ()
        p, known = start.presences[agent], start.reports.get(agent)
        heard = -1  # the newest order that the agent would answer
        for each in self.cluster.starts:
            is_known = each is not None and known is not None and each.name == known.incarnation
            if each is not None and is_known and each.follower.start == start.name:
                heard = each.follower.link.newest
        return (
            self.of_fields(p),
            self.at(p.contact.heard),
            p.contact.closed is None,
            self.at(p.answered.lease_start),
            self.answered_at(start, agent, heard),
            None if known is None else (known.incarnation, known.version, known.term),
        )

    def answered_at(self, head: Start, agent: int, heard: int) -> float | None:
        """Return when this head sent the newest order that an answer to `heard` would answer."""
        if head.lease is None:
            return None
        sent = head.presences[agent].answered._unanswered
        answered = [at for serial, at in sent if serial <= heard]
        return self.at(answered[-1]) if answered else None

    def of_kept(self, kept: Kept) -> tuple[Any, ...]:
        sender, to = self.cluster.starts[kept.sender], self.cluster.starts[kept.to]
        common = (kept.sender, kept.to, sender is None)
        place = self.cluster.places[kept.sender]
        match kept.message:
            case Ballot() as b if to is not None:
                known, vote = to.reports.get(place), to.candidate._ballots.get(place, (0.0, b))[1]
                is_new = known is None or b.serial > known.serial
                is_vote = vote is b or vote.incarnation != b.incarnation or b.serial > vote.serial
                said = (b.incarnation, b.term, b.seeking, b.version, b.configuration)
                return (*common, is_new, is_vote, said, self.answered_at(to, place, b.heard))
            case Beat() as b if to is not None:
                said = (b.incarnation, b.term, b.tenure, b.start, b.configuration)
                sent_at = self.sent_at(kept, b)
                return (*common, b.serial > to.follower.link.newest, said, sent_at)
            case Hint() as hint:
                return (*common, (hint.term, hint.led))
            case Proof(until):
                return (*common, "proof", self.at(until))
        return (*common, "nobody is there")

    def sent_at(self, kept: Kept, beat: Beat) -> float | None:
        """Return when the head sent this order, to which an answer may follow."""
        head = self.cluster.starts[kept.sender]
        if head is None or head.name != beat.start:
            return None
        return self.answered_at(head, self.cluster.places[kept.to], beat.serial)


# Copies of a cluster share what never changes.


_configurations: dict[Configuration, int] = {}
_by_number: list[Configuration] = []


def _configuration(number: int) -> Configuration:
    return _by_number[number]


def _number(configuration: Configuration) -> tuple[Any, ...]:
    number = _configurations.get(configuration)
    if number is None:
        number = _configurations[configuration] = len(_by_number)
        _by_number.append(configuration)
    return (_configuration, (number,))


def _timing() -> Timing:
    return TIMING


class Pickler(pickle.Pickler):
    """Pickles what many states share by reference. Only here: other tests pickle it, too."""

    dispatch_table: ClassVar[dict[type, Any]] = copyreg.dispatch_table | {  # type: ignore[misc]
        Configuration: _number,
        Rotation: lambda rotation: (rotation_of, (len(rotation),)),
        Timing: lambda _: (_timing, ()),
    }


def frozen(cluster: Cluster) -> bytes:
    file = io.BytesIO()
    Pickler(file, pickle.HIGHEST_PROTOCOL).dump(cluster)
    return file.getvalue()


History = tuple[tuple[Any, ...], ...]


class Found(NamedTuple):
    states: int
    depth: int
    broken: str  # "" if no law was broken
    history: History


def after(cluster: Cluster, history: History) -> Cluster:
    for action in history:
        cluster.do(action)
    return cluster


def search(first: Cluster, depth: int) -> Found:
    """Do all that can happen, `depth` times one after the other at most. States that were seen
    before are left out.
    """
    seen = {hash(first.key())}
    level: list[tuple[bytes, History]] = [(frozen(first), ())]
    for done in range(depth):
        following: list[tuple[bytes, History]] = []
        for state, history in level:
            for action in list(pickle.loads(state).actions()):
                cluster = pickle.loads(state)
                try:
                    cluster.do(action)
                except (BrokenLawError, AssertionError) as e:
                    return Found(len(seen), done + 1, str(e), (*history, action))
                key = hash(cluster.key())
                if key not in seen:
                    seen.add(key)
                    following.append((frozen(cluster), (*history, action)))
        level = following
    return Found(len(seen), depth, "", ())


def written(history: History) -> str:
    return ", ".join(" ".join(map(str, action)) for action in history)


def parsed(text: str) -> History:
    each = (part.split() for part in text.split(",") if part.strip())
    return tuple((verb, *map(int, numbers)) for verb, *numbers in each)


class Scene(NamedTuple):
    """The beginning of a search, and its depth: in `make quick`, and in `make sim`."""

    agents: int
    limits: Limits
    history: str
    quick: int
    deep: int
    absent: int = 0
    twins: tuple[int, ...] = ()
    claims: bool = True

    def first(self) -> Cluster:
        more = {"absent": self.absent, "twins": self.twins, "claims": self.claims}
        return after(Cluster(self.agents, self.limits, **more), parsed(self.history))

    def search(self, depth: int) -> Found:
        return search(self.first(), depth)


# Agents 3 and 4 are cut off from the head, which then loses both of the others.
TWO_DEATHS = Scene(
    5,
    Limits(kills=2, starts=0, kept=0),
    "talk 1 0, talk 2 0, pass, talk 1 0, talk 2 0, pass, talk 1 0, talk 2 0, beat 0, talk 1 0, "
    "talk 2 0, beat 0, talk 1 0, talk 2 0, kill 1, kill 2, prove 1 0, prove 2 0, beat 0, beat 0, "
    "pass, prove 1 3, prove 2 3, prove 1 4, prove 2 4, pass, pass, pass",
    *(3, 5),
)
# Half of the agents are cut off from the head, which then loses the other one.
HALF_ARE_LEFT = Scene(
    4,
    Limits(kills=1, starts=0, kept=0),
    "talk 1 0, pass, talk 1 0, pass, talk 1 0, beat 0, talk 1 0, beat 0, kill 1, prove 1 0, "
    "beat 0, beat 0, prove 1 2, pass, beat 0, prove 1 2, pass, pass, pass, pass, talk 3 2",
    *(3, 5),
)
# Another agent was elected. Two that have asked it to lead have heard the old head again since.
ELECTED_AND_LEFT = Scene(
    5,
    Limits(kills=0, starts=0, kept=0),
    "pass, pass, pass, ask 2 1, ask 3 1, talk 4 1, talk 2 0, talk 3 0, beat 0, talk 2 0, "
    "talk 3 0, beat 0, talk 2 0, pass, talk 2 0, talk 4 1, pass, talk 2 0, talk 4 1, pass, "
    "talk 2 0, talk 4 1",
    *(3, 5),
)
# Of two heads each has two voters, and the fifth, which has followed the old one, was killed.
ONE_IS_MISSING = Scene(
    5,
    Limits(kills=1, starts=1, kept=0),
    "pass, pass, pass, ask 2 1, talk 3 1, talk 2 0, talk 4 0, kill 4",
    *(3, 5),
)
# The last agent starts after another one was elected, and follows that.
A_NEWCOMER = Scene(
    5,
    Limits(kills=0, starts=0, kept=0),
    "pass, pass, pass, ask 2 1, talk 3 1, start 4, talk 4 1, pass, talk 3 1, talk 4 1, pass, "
    "talk 3 1, talk 4 1, pass, talk 3 1, talk 4 1",
    *(2, 5, 1),
)
# Agent 2 was cut off. It has asked after agent 1, of which another start is there when it hears
# that the first one was dead.
AN_OLD_PROOF = Scene(
    4,
    Limits(kills=2, starts=1, kept=1),
    "kill 1, prove 1 0, beat 0, talk 2 0, talk 3 0, beat 0, talk 2 0, talk 3 0, beat 0, "
    "pass, talk 3 0, beat 0, pass, talk 3 0, beat 0, pass, talk 3 0, beat 0, doubt 1 2, start 1, "
    "talk 1 0, beat 0, talk 3 0, talk 1 0, beat 0, talk 3 0, talk 1 0",
    *(3, 5),
)
# Half of the agents were killed, and nobody could prove it. Other starts of them have come.
RESTARTED = Scene(
    4,
    Limits(kills=3, starts=2, kept=1),
    "kill 2, kill 3, talk 1 0, pass, talk 1 0, beat 0, pass, talk 1 0, beat 0, talk 1 0, beat 0, "
    "start 2, start 3, talk 2 0, talk 3 0, beat 0, talk 1 0",
    *(2, 4),
)
# Half of the agents are cut off from the head, which then loses one of the others.
THREE_ARE_LEFT = Scene(
    6,
    Limits(kills=1, starts=0, kept=0),
    "talk 1 0, talk 2 0, pass, talk 1 0, talk 2 0, pass, talk 1 0, talk 2 0, beat 0, talk 1 0, "
    "talk 2 0, beat 0, talk 1 0, talk 2 0, kill 1, prove 1 0, beat 0, beat 0, talk 2 0, pass, "
    "talk 2 0, beat 0, prove 1 3, prove 1 4, prove 1 5, pass, talk 2 0, beat 0, pass, talk 2 0, "
    "beat 0, pass, talk 2 0, beat 0, talk 3 5, talk 4 5",
    *(2, 4),
)
# Half of the agents are cut off from the head. Other starts of them, with other claims, follow it,
# and it loses the last agent.
OTHERS_BESIDE = Scene(
    4,
    Limits(kills=1, starts=2, kept=0),
    "talk 1 0, pass, talk 1 0, beat 0, pass, talk 1 0, beat 0, talk 1 0, beat 0, start 4, start 5, "
    "talk 4 0, talk 5 0, beat 0, talk 1 0, talk 4 0, talk 5 0, beat 0, talk 1 0, talk 4 0, "
    "talk 5 0, beat 0, talk 1 0, talk 4 0, talk 5 0, kill 1, prove 1 0, beat 0, pass, talk 4 0, "
    "talk 5 0, beat 0, prove 1 2, pass, talk 4 0, talk 5 0, beat 0, talk 3 2, pass, talk 4 0, "
    "talk 5 0, beat 0, talk 3 2, pass, talk 4 0, talk 5 0, beat 0",
    *(2, 5),
    twins=(2, 3),
)
# The first agents come, one after the other.
ARRIVALS = Scene(3, Limits(kills=0, starts=0, kept=0), "start 1, start 2", *(3, 6, 2))
SCENES = {
    "two agents": Scene(2, Limits(), "", 4, 9),
    "three agents": Scene(3, Limits(), "", 3, 6),
    "three, each by itself": Scene(3, Limits(), "pass, pass, pass", 2, 5),
    "five agents": Scene(5, Limits(), "", 2, 4),
    "five, each by itself": Scene(5, Limits(), "pass, pass, pass", 1, 3),
    "two deaths": TWO_DEATHS,
    "half are left": HALF_ARE_LEFT,
    "elected and left": ELECTED_AND_LEFT,
    "one is missing": ONE_IS_MISSING,
    "a newcomer": A_NEWCOMER,
    "an old proof": AN_OLD_PROOF,
    "restarted": RESTARTED,
    "arrivals": ARRIVALS,
    "six agents": Scene(6, Limits(), "", 1, 3),
    "six, each by itself": Scene(6, Limits(), "pass, pass, pass", 1, 3),
    "three are left": THREE_ARE_LEFT,
    "another start beside": Scene(3, Limits(), "", 2, 5, twins=(2,)),
    "another first agent beside": Scene(3, Limits(), "pass, pass, pass", 2, 4, twins=(0,)),
    "others beside": OTHERS_BESIDE,
    "no claims are known": OTHERS_BESIDE._replace(claims=False),
    "restarted, and no claims are known": RESTARTED._replace(claims=False),
}


def search_all() -> int:
    broken = False
    for name, scene in SCENES.items():
        began = time.monotonic()
        found = scene.search(scene.deep)
        spent = time.monotonic() - began
        print(f"{name}: {found.states} states, {found.depth} deep, in {spent:.0f} s", flush=True)
        if found.broken:
            broken = True
            history = written((*parsed(scene.history), *found.history))
            where = f"--agents {scene.agents} --absent {scene.absent}"
            where += "".join(f" --twin {place}" for place in scene.twins)
            where += "" if scene.claims else " --no-claims"
            print(f"BROKEN: {found.broken}")
            print(f'to see it: python {sys.argv[0]} {where} --replay "{history}"')
    return 1 if broken else 0


def replay(cluster: Cluster, history: str) -> int:
    for action in parsed(history):
        try:
            cluster.do(action)
        except BrokenLawError as e:
            print(f"{cluster.now:5.1f}  {written((action,)):12}  BROKEN: {e}")
            return 1
        print(f"{cluster.now:5.1f}  {written((action,)):12}  {' '.join(cluster.heads())}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--absent", type=int, default=0, help="agents that are to be started")
    parser.add_argument("--twin", type=int, action="append", default=[], metavar="PLACE")
    parser.add_argument("--no-claims", action="store_true", help="no claim is known")
    parser.add_argument("--replay", metavar="HISTORY", help="show who leads after each event")
    options = parser.parse_args()
    if options.replay is None:
        return search_all()
    more = {"absent": options.absent, "twins": (*options.twin,), "claims": not options.no_claims}
    return replay(Cluster(options.agents, Limits(), **more), options.replay)


if __name__ == "__main__":
    sys.exit(main())
