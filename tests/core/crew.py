"""Several agents, and a network between them that takes no time: stories of more than one core.

Workers start and end at once when they are asked to, and are held while they have no lease. Nothing
passes between agents that are cut off from one another; the host of a dead agent says so, unless
it is `down` as well.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from story import Questions, a_job

from hpclaunch.core.control import Control
from hpclaunch.core.member.member import AgentStart
from hpclaunch.core.protocol import effects, events
from hpclaunch.core.protocol.crc import checksum
from hpclaunch.core.protocol.job_snapshot import PastRound
from hpclaunch.core.protocol.job_state import JobState
from hpclaunch.core.protocol.model import (
    Answer,
    Assignment,
    Evidence,
    Look,
    NoticeAnswer,
    Place,
    Query,
    QueryKind,
    RankState,
    Sample,
    Seen,
    StepNotice,
    Verdict,
)
from hpclaunch.core.protocol.values import replace
from hpclaunch.observe.console import Console
from hpclaunch.observe.launches import Launch
from hpclaunch.observe.ledger import DatedFact, ledger_of
from hpclaunch.observe.notifications import Notification, Notifications
from hpclaunch.observe.past_rounds import past_rounds

MOMENT = 1e-6  # so much later than its deadline an agent is woken
AGAIN = 20  # times that agents may be woken before time passes


class Crew:
    """All agents of a job by their index. Not all have to be started; `until` lets time pass."""

    def __init__(self, hosts: str, **settings: Any) -> None:
        self.job = a_job(hosts, **settings)
        self.now = 0.0
        self.agents: dict[int, Control] = {}  # those who are alive
        self.said: list[str] = []
        self.notifications: list[Notification] = []  # of all agents that have led
        self.facts: dict[int, list[DatedFact]] = {}  # that each agent has recorded
        self._observers: dict[int, tuple[Console, Notifications]] = {}
        self.checkpoint: str | None = ""  # the newest; None: the search for it continues
        self.older: list[str] = []  # the newest first
        self.searches = 0  # for a checkpoint, that were answered
        self.unseen: dict[int, str] = {}  # agents that do not see one that is named like this
        self.silent: set[int] = set()  # agents that do not answer when they are asked to look
        self.reads = False  # each is to read a share of it
        self.asked: list[Look] = []
        self.damaged = ""  # one that agents find to be so
        self.parts: dict[int, dict[int, Assignment]] = {}  # by round and agent
        self.running: dict[int, int] = {}  # the round whose workers an agent has, and they run
        self.held: dict[int, int] = {}  # the same, and they do not: their lease is over
        self.clashes: set[frozenset[int]] = set()  # agents with workers of two rounds at once
        self.verdicts: dict[int, Verdict] = {}
        self.where: dict[int, tuple[RankState, ...]] = {}  # an agent's workers, when it is asked
        self.samples: dict[int, Sample] = {}  # how they keep pace, when it is asked
        self.sampled = 0  # how often one was asked
        self.steps: dict[int, tuple[int, ...]] = {}  # that an agent's workers have begun
        self.offers: dict[int, StepNotice] = {}  # the last that an agent has had
        self.notices: dict[int, list[StepNotice]] = {}  # those that it was given
        self.withdrawn: list[int] = []  # agents whose workers need not wait any more
        self.ends_at: float | None = None  # when Slurm ends the job
        self.state = JobState.RUNNING
        self.draining: tuple[str, ...] = ()
        self.requeues: bool | None = False  # Slurm starts it again if preempted; None: never
        self.saved_at: float | None = None  # when the newest checkpoint was
        self.save_took = 0.0  # seconds
        self.flush_until: list[float] = []  # the ends of waits for copies from memory
        self.searched: list[effects.ChooseCheckpoint] = []  # every search
        self.unflushed = False  # what is in memory cannot be copied to storage
        self.without_stager: set[int] = set()  # agents whose stager does not listen yet
        self.led: list[tuple[int, effects.LeadStagers]] = []  # the stagers, and by which agent
        self._deadlines: dict[int, float] = {}  # of agents that have handled nothing since
        self._questions: defaultdict[int, Questions] = defaultdict(Questions)
        self._leases: dict[int, float] = {}
        self._store: dict[int, tuple[int, str, int]] = {}  # of an agent's workers, with their round
        self._came: list[str] = []
        self._apart: set[frozenset[int]] = set()
        self._down: set[int] = set()
        self._todo: deque[tuple[int, events.Event]] = deque()

    @property
    def heads(self) -> list[int]:
        return [i for i, agent in sorted(self.agents.items()) if agent.leads]

    def follows(self, agent: int) -> int:
        return self.agents[agent].member.follower.head

    def seeking(self, agent: int) -> int:
        return self.agents[agent].member.follower.seeking

    # What happens to them

    def start(self, *agents: int, anew: bool = False) -> None:
        self._down -= set(agents)
        for i in agents:
            address, name = f"10.0.0.{i + 1}", f"{'b' if anew else 'a'}{i}"
            first = anew and self.job.elects and i == 0
            own = (i, 2, address, name)
            self.agents[i] = Control(
                AgentStart(self.job, *own, port=7000 + i, claim="host", anew=first)
            )
            self.feed(i, events.Started())
            if self.job.stages_together and i not in self.without_stager:
                self.feed(i, events.StagerFound(6000 + i))

    def come(self, *hosts: str) -> None:
        """Start agents that get their places from the first head; until then, their indices are
        beyond all places."""
        first, _, *rest = self.job.places
        for host in hosts:
            number = len(self.job.places) + len(self._came)
            self._came.append(host)
            job = replace(self.job, places=(first, Place(1, 1, host), *rest))
            port = 7000 + number
            self.agents[number] = Control(
                AgentStart(job, 1, 2, "10.0.1.1", host, port=port, has_place=False)
            )
            self.feed(number, events.Started())

    def launch(self, *agents: int, until: float = math.inf) -> Launch:
        """Return the ledger of the facts that these agents, or all, have recorded."""
        runs = [self.facts.get(i, []) for i in agents or self.facts]
        found = ledger_of([[each for each in run if each[0] < until] for run in runs])
        launch = found.launch("1.0")
        assert launch is not None, "somebody has led"
        return launch

    def past_rounds(self) -> tuple[PastRound, ...]:
        """Return the past rounds as `hpclaunch status` shows them."""
        return past_rounds(ledger_of(self.facts.values()).ends, self.now)

    def kill(self, *agents: int, down: bool = False) -> None:
        self._down |= set(agents) if down else set()
        self._leave(*agents)

    def cut(self, some: Iterable[int], others: Iterable[int]) -> None:
        """Cut the connections between these agents; no agent is notified."""
        others = tuple(others)
        self._apart |= {frozenset((a, b)) for a in some for b in others}

    def mend(self, some: Iterable[int] = (), others: Iterable[int] = ()) -> None:
        """Restore the connections between these agents, or all connections."""
        others = tuple(others)
        self._apart -= {frozenset((a, b)) for a in some for b in others} or self._apart.copy()

    def until(self, time: float) -> None:
        repeats = 0
        while (due := min(self._due(), key=itemgetter(0), default=None)) and due[0] + MOMENT < time:
            deadline, agent, event = due
            repeats = 0 if deadline + MOMENT > self.now else repeats + 1
            assert repeats < AGAIN, f"agent {agent} does not do what is due"
            self.now = max(self.now, deadline + MOMENT)
            self.feed(agent, event)
        self.now = time

    def _due(self) -> list[tuple[float, int, Any]]:
        until = ((self._leases.get(i, math.inf), i) for i in self.running)  # one alone has no lease
        leases = [(time, i, events.LeaseOver()) for time, i in until]
        return leases + [(self._deadline(i), i, events.Tick()) for i in self.agents]

    def _deadline(self, agent: int) -> float:
        if agent not in self._deadlines:
            self._deadlines[agent] = self.agents[agent].next_deadline()
        return self._deadlines[agent]

    # What they do

    def feed(self, agent: int, event: events.Event) -> None:
        """Deliver an event. An answer without a number is one to the last question."""
        self._todo.append((agent, self._questions[agent].numbered(event)))
        while self._todo:
            i, each = self._todo.popleft()
            if isinstance(each, events.LeaseOver):
                self.held[i] = self.running.pop(i)
            if i in self.agents:
                self._deadlines.pop(i, None)
                for effect in self.agents[i].handle(each, self.now):
                    self._questions[i].note(effect)
                    self._carry_out(i, effect)

    def _carry_out(self, i: int, effect: effects.Effect) -> None:
        match effect:
            case effects.Send(to=to, message=message):
                if self._reaches(i, to):
                    self._todo.append((to, events.Received(i, message, f"10.0.0.{i + 1}")))
            case effects.Dial(agents=agents):
                there = (a for a in agents if a in self.agents and self._reaches(i, a))
                self._todo += ((i, events.HeadReached(agent)) for agent in there)
            case effects.TakePlace(index=index):
                self.agents[index] = self.agents.pop(i)
                self._todo.append((index, events.PlaceTaken(7000 + index)))
            case effects.Probe(agent=agent, number=number):
                if agent not in {*self.agents, *self._down} and self._reaches(i, agent):
                    self._todo.append((i, events.AgentGone(agent, number)))
            case effects.OpenStore():
                self._todo.append((i, events.StoreListening(4000 + i)))
            case effects.ChooseCheckpoint(number=number) if self.checkpoint is not None:
                self.searches += 1
                self.searched.append(effect)
                not_to = dict(effect.avoid)
                there = (path for path in (self.checkpoint, *self.older) if path)
                newest = next((path for path in there if checksum(path) not in not_to), "")
                passed_over = tuple(f"it: {why}" for why in not_to.values())
                last = newest.strip("/cp.t")
                step = int(last) if last.isdigit() else None
                choice = events.CheckpointChosen(newest, passed_over, step=step, number=number)
                age = None if self.saved_at is None else self.now - self.saved_at
                more = {"is_read": not self.reads, "age": age, "took": self.save_took}
                more["staged"] = effect.stages or (self.unflushed and bool(effect.agents))
                self._todo.append((i, replace(choice, **more)))
            case effects.LeadStagers():
                self.led.append((i, effect))
            case effects.FlushStage(until=until):
                self.flush_until.append(until)
            case effects.LookAt(look=look) if look is not None and i not in self.silent:
                self.asked.append(look)
                self._todo.append((i, events.CheckpointSeen(self._sees(i, look))))
            case effects.StartWorkers(assignment=part):
                self.running[i] = part.round
                self.parts.setdefault(part.round, {})[i] = part
                self._store[i] = (part.round, part.store_address, part.store_port)
                self._note_clashes()
            case effects.AskWorkers(query=query):
                self._ask_workers(i, query)
            case effects.AskForEnd(number=number) if self.ends_at is not None:
                left, may = self.ends_at - self.now, self.requeues is not None
                again = bool(self.state is JobState.PREEMPTED and self.requeues)
                found = events.EndFound(left, self.state, may, again)
                found = replace(found, draining=self.draining, number=number)
                self._todo.append((i, found))
            case effects.OfferNotice(notice=offer) if i in self.steps:
                steps, self.offers[i] = self.steps[i], offer
                accepted = not steps or not offer.step or max(steps) < offer.step
                ends = (min(steps), max(steps)) if steps else ()
                answer = NoticeAnswer(offer.number, accepted=accepted, steps=ends)
                self._todo.append((i, events.NoticeOffered(answer)))
            case effects.WithdrawNotice():
                self.withdrawn.append(i)
            case effects.GiveNotice(number=number):
                assert self.offers[i].number == number, "it was offered"
                self.notices.setdefault(i, []).append(self.offers[i])
            case effects.KeepWorkers(until=until):
                self._leases[i] = until
                if i in self.held and self.now < until:
                    self.running[i] = self.held.pop(i)
                    self._note_clashes()
            case effects.StopWorkers():
                self.running.pop(i, None)
                self.held.pop(i, None)
                self._todo.append((i, events.WorkersGone()))
            case effects.Record(fact=fact, ago=ago):
                self.facts.setdefault(i, []).append((self.now - ago, fact))
                fresh = (Console(), Notifications())
                console, notifications = self._observers.setdefault(i, fresh)
                self.said += console.lines(fact)
                self.notifications += notifications.note(fact, self.now)
            case effects.Exit(verdict=verdict):
                self.verdicts[i] = verdict
                self._leave(i)

    def _note_clashes(self) -> None:
        if len({self._store[a] for a in self.running}) > 1:
            self.clashes.add(frozenset(self.running))

    def _ask_workers(self, i: int, query: Query) -> None:
        body: Evidence | Sample
        if query.kind is QueryKind.EVIDENCE and i in self.where:
            body = Evidence(self.where[i])
        elif query.kind is QueryKind.SAMPLE and i in self.samples:
            self.sampled += 1
            body = self.samples[i]
        else:
            return
        self._todo.append((i, events.WorkersAnswered(Answer(query, body))))

    def _sees(self, agent: int, look: Look) -> Seen:
        if self.unseen.get(agent) == look.path:
            return Seen(look.number, look.mark, look.share, missing="there is no such file")
        return Seen(
            look.number,
            look.mark,
            look.share,
            damage="bad bytes" if look.path == self.damaged else "",
        )

    def _leave(self, *agents: int) -> None:
        for i in agents:
            del self.agents[i]
            self.running.pop(i, None)
            self.held.pop(i, None)
        for i in set(agents) - self._down:
            for other in [a for a in self.agents if self._reaches(a, i)]:
                self.feed(other, events.PeerClosed(i))
                self.feed(other, events.HeadClosed(i))

    def _reaches(self, one: int, other: int) -> bool:
        return frozenset((one, other)) not in self._apart
