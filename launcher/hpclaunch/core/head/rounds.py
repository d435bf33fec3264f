"""The head: the state machine of a job's rounds.

Every transition is in `NEXT` (stages.py) and `_step`. The head keeps the newest report of every
agent and decides from that state alone, never from the fact that a message arrived; so it does not
matter whether a message came once, twice or late.
"""

from __future__ import annotations

import math

from ..consensus.election import Election
from ..consensus.leader_lease import LeaderLease
from ..consensus.rotation import Line
from ..placement.assigning import assign
from ..placement.seating import seated
from ..protocol.configuration import Configuration
from ..protocol.effects import Effect, Probe, Say, Send
from ..protocol.events import (
    AgentGone,
    CheckpointChosen,
    Diagnosed,
    Event,
    PeerClosed,
    Received,
    Started,
    Tick,
)
from ..protocol.messages import Report
from ..protocol.model import Job, Phase, Verdict
from ..protocol.stages import GOAL, NEXT, Stage
from ..protocol.wording import count, some
from . import restarts, takeover
from .choosing import CheckpointChoice
from .failures import Failures
from .growing import Growth
from .loss_detection import LossDetector
from .orders import Orders
from .preface import NAMES, preface
from .rendezvous import Rendezvous
from .roster import Laggards, Peer, Roster, all_in


class Head:
    """`handle(event, now) -> effects`; the job is over once `stage` is ENDED."""

    def __init__(
        self, job: Job, *, me: int = 0, term: int = 0, configuration: Configuration | None = None
    ) -> None:
        self.job = job
        self.me = me
        self.line = Line(job.places)
        self.stage = Stage.RENDEZVOUS
        self.round = 0
        self.budget = restarts.Budget(job.max_restarts)
        self.verdict: Verdict | None = None
        self.roster = Roster(job, me)
        self.losses = LossDetector(job, self.roster)
        self.lease = LeaderLease(job, self.line, me, self.roster, configuration)
        self._ordering = Orders(self.lease, term)
        self._rendezvous = Rendezvous(job, self.roster, self.lease)
        self._tenure_since = math.inf
        self._unsaid = takeover.Unsaid()
        self._succeeds = False  # another head, and has begun no round yet
        self._measuring = job.preflight  # the next round, or this one, is the preflight
        self._parts: list[Peer] = []  # those who have workers in this round
        self.groups: list[int] = []  # their nodes in the order of the ranks
        self._failures = Failures(job, self.roster, self.budget)
        self._unsettled = Laggards()
        self._choosing = CheckpointChoice(job, self.budget)
        self.growing = Growth(job, self.roster)
        self.grows = False  # this round ends for the sake of a larger one
        self._begun_at = 0.0  # this round
        self._beat_at = math.inf
        self._now = 0.0
        self._renewed: list[Effect] = []  # the lease of our own workers
        self._ticked = False  # what only time can tell
        self._since = 0.0  # when this stage began

    @property
    def term(self) -> int:
        return self._ordering.term

    def next_deadline(self) -> float:
        if self.stage is Stage.ENDED:
            return math.inf
        deadlines = [self._beat_at, self.losses.look_at]
        if self.stage is Stage.CHOOSING:
            deadlines.append(self._choosing.next_deadline(self._rendezvous.paused_until))
        if self.stage is Stage.RENDEZVOUS:
            deadlines.append(self._rendezvous.next_deadline())
        if self.stage is Stage.RUNNING:
            deadlines.append(self.lease.until)
        if self.stage is Stage.ENDING:
            deadlines.append(self._since + self.job.timing.goodbye)
        return min(deadlines)

    @property
    def deposed_at(self) -> float:
        """Another may lead from then on, since we had no quorum."""
        return max(self.lease.until, self._tenure_since + self.job.timing.loss)

    def take_over(self, election: Election, now: float) -> list[Effect]:
        """From a head that is lost, with the reports of those who ask for it."""
        there, here = (self.job.places[agent].host for agent in (election.old, self.me))
        self._unsaid.keep(f"the head on {there} was lost: {here} leads now")
        self.lease.dead_head = election.old if election.old in election.gone else None
        self.budget.inherit(election.configuration.tally)
        self._succeeds, self._measuring = True, False
        self._now = self._since = self._tenure_since = now
        begun = election.configuration.round >= 0
        self.round = election.configuration.round + takeover.PASSED if begun else 0
        self._rendezvous.take_over(now, begun=begun)
        self._rendezvous.pause(takeover.enrol(self.job, self.roster, election, now, begun=begun))
        for peer in self.roster:
            self.losses.expect(peer)
        self._beat_at = now + self.job.timing.beat
        return self.lease.renew(now) + self._orders()

    def handle(self, event: Event, now: float) -> list[Effect]:
        if self.stage is Stage.ENDED:
            return []
        self._now = now
        effects: list[Effect] = []
        news = None  # whose report it is, if it is a new one and not our own
        match event:
            case Started():
                self._since = self._tenure_since = now
                self._rendezvous.begin(now)
                effects += self.lease.renew(now)
                self._beat_at = now + self.job.timing.beat if self.roster.others else math.inf
            case Received(sender=sender, message=Report() as report):
                peer = self.roster[sender]
                if peer.accept(report, now, follows=self.lease.follows(report)):
                    news = sender if sender != self.me else None
                    effects += self._note(peer, report, now)
            case PeerClosed(index=index) if index < len(self.roster):
                peer = self.roster[index]
                peer.contact.close(now)
                if not peer.lost and peer.report is not None:
                    effects.append(Probe(index, peer.report.address, peer.report.port))
            case AgentGone(index=index) if self.roster[index].die(now, self.job):
                self._rendezvous.pause(now + self.job.timing.killing)
                effects += self.losses.look(now) + self.lease.renew(now)
            case CheckpointChosen() if self.stage is Stage.CHOOSING:
                self._choosing.choice = event
            case CheckpointChosen() if self.stage is Stage.RUNNING:
                self.growing.chosen(event.mark)
            case Diagnosed(text=text) if self.stage is Stage.RENDEZVOUS:
                effects += self._rendezvous.explain(text, now)
        if isinstance(event, Tick) and now >= self.losses.look_at:
            effects += self.losses.look(now)
        beat = now >= self._beat_at
        if beat:
            self._beat_at = now + self.job.timing.beat
            effects += self.lease.renew(now)
            self._keep_configuration(now)
        self._ticked = isinstance(event, Tick)
        effects += self._advance(now)
        if news is not None and not any(isinstance(e, Send) and e.to == news for e in effects):
            effects.append(self._order(self.roster[news]))  # who hears nothing takes us for lost
        if beat and self.stage is Stage.RUNNING:
            effects += self._grow(now)
        if beat:  # most have had an answer to their own beat
            before = now - self.job.timing.beat
            waiting = (p for p in self.roster.others if p.report and p.echo.sent_at <= before)
            effects += map(self._order, waiting)
        return self._unsaid.pass_on(effects, elected=self.lease.holds(now))

    def _grow(self, now: float) -> list[Effect]:
        hosts = self.growing.newcomers(self.groups, self.round)
        if not hosts or self._measuring or self.losses.hit:
            return []
        if not self.growing.is_time:
            return self.growing.look(self._choosing.search, now)
        self.losses.hit = self.grows = True
        return [Say(f"ending the round, to go on with {some(hosts, NAMES)}"), *self._advance(now)]

    def _advance(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while (step := self._step(now)) is not None:
            effects += step
        renewed, self._renewed = self._renewed, []
        return renewed + effects

    def _keep_configuration(self, now: float) -> None:
        """Of those who are there, once the first round has begun."""
        if self.lease.holds(now) and self.groups and self.stage is not Stage.ENDING:
            self.lease.write(self.round, self.budget.tally)
            self.lease.settle()

    # What is known

    def _note(self, peer: Peer, report: Report, now: float) -> list[Effect]:
        if report.round == self.round:
            self._failures.note(peer, report, now)
        if self.verdict is None:
            self.verdict = restarts.asked_for(report, self.budget.total)
        if report.term > self.term and self.lease.holds(now):
            self._ordering.term = self.line.next_term(report.term, self.me)  # it led, in vain
        return self.lease.note(peer, now) + self.losses.note(peer, report, self.round)

    # What to do

    def _enter(self, stage: Stage, now: float) -> None:
        assert stage in NEXT[self.stage], f"the head cannot go from {self.stage} to {stage}"
        self.stage = stage
        self._since = now

    def _step(self, now: float) -> list[Effect] | None:
        """One transition with its effects, or None when the job stays where it is."""
        match self.stage:
            case Stage.RENDEZVOUS:
                return self._gather(now)
            case Stage.CHOOSING:
                return self._choose(now)
            case Stage.RUNNING:
                return self._watch(now)
            case Stage.STOPPING:
                return self._settle(now)
            case Stage.ENDING:
                if not self.roster.has_left and now < self._since + self.job.timing.goodbye:
                    return None
                self._enter(Stage.ENDED, now)
                return []
            case Stage.ENDED:
                return None

    def _gather(self, now: float) -> list[Effect] | None:
        if self._is_given_up(now):
            return self._end(now)
        if not self._is_ready(now):
            return self._rendezvous.notice(now) or None
        self._enter(Stage.CHOOSING, now)
        return self._choosing.begin(now)

    def _is_given_up(self, now: float) -> bool:
        why = self._rendezvous.verdict(now, self.budget.total, ticked=self._ticked)
        self.verdict = self.verdict or why
        return self.verdict is not None

    def _is_ready(self, now: float) -> bool:
        ready = self._rendezvous.ready(now, self._next_groups)
        if ready and not self.lease.lasts(now):
            self._renewed += self.lease.renew(now)
        return ready and self.lease.lasts(now)

    def _next_groups(self) -> list[int]:
        return seated(self._last_groups(), sorted(self.roster.nodes), self.job.most)

    def _last_groups(self) -> list[int]:
        configuration, groups = self.lease.configuration, self.groups
        return takeover.groups(self.roster, configuration) if self._succeeds else groups

    def _choose(self, now: float) -> list[Effect] | None:
        if self._is_given_up(now):
            return self._end(now)
        if self._rendezvous.is_short:
            self._enter(Stage.RENDEZVOUS, now)
            return []
        choosing = self._choosing
        if said := choosing.notice(now):
            return said
        if choosing.choice is None:
            return None
        # One whose fork server was killed meanwhile has no store yet; the port of its last one
        # is dead, and whoever began with that would wait for a store that nobody serves.
        if not self._is_ready(now):
            return None
        if not (choosing.done or self._measuring):
            asked = choosing.asked
            effects = choosing.consider(self._takers, now)
            if effects is not None:
                return [*effects, *(self._orders() if choosing.asked != asked else ())]
            if choosing.verdict is None and not choosing.done:
                return None
        checkpoint = choosing.choice
        self.verdict = choosing.verdict
        if self.verdict is None:
            self.verdict = self.budget.begin(checkpoint)
        if self.verdict is not None:
            return self._end(now)
        return self._start(checkpoint, self._next_groups(), now)

    def _takers(self) -> list[Peer]:
        """Who takes part in the next round."""
        taking = set(self._next_groups())
        return [p for p in self.roster if p.place.node in taking]

    def _start(self, checkpoint: CheckpointChosen, groups: list[int], now: float) -> list[Effect]:
        self.round = max(self.round, takeover.after_all(self.roster))
        last, self.groups, self._succeeds = self._last_groups(), groups, False
        taking = set(groups)
        self._parts = [p for p in self.roster if p.place.node in taking]
        assigned = assign(
            self.job,
            {p.place.index: p.report for p in self._parts if p.report is not None},
            groups=groups,
            head=self.me,
            number=self.round,
            restarts=self.budget.total,
            checkpoint="" if self._measuring else checkpoint.path,
            preflight=self._measuring,
        )
        for peer in self.roster:
            peer.assignment = assigned.get(peer.place.index)
        self._keep_configuration(now)
        self.grows = False
        self.growing.begin()
        self._failures.begin()
        self.losses.hit = False
        self._enter(Stage.RUNNING, now)
        self._begun_at = now
        lines = preface(self.job, self.roster, last, groups, checkpoint)
        return [*(Say(line) for line in lines), *self._orders()]

    def _watch(self, now: float) -> list[Effect] | None:
        done = all_in(Phase.DONE, self.round, self._parts)
        failed = self._failures.unasked and not done  # else it was a store that nobody needs now
        if done and self._measuring:
            self._measuring = False
            failed = True  # not quite, but this round is to end for the next one as well
        if self._ticked and not self.lease.holds(now):
            self.losses.hit, done = True, False  # it is not for us to say so
        if self.verdict is not None or failed or (self.losses.hit and not done):
            self._enter(Stage.STOPPING, now)
            return self._orders()
        if not done or not self.lease.holds(now):
            return None
        again = f" after {count(self.budget.total, 'restart')}" if self.budget.total else ""
        self.verdict = Verdict(0, f"all workers ended with 0{again}", restarts=self.budget.total)
        return self._end(now)

    def _settle(self, now: float) -> list[Effect] | None:
        """No worker of this round may be left anywhere before the next one or the end."""
        if not self._unsettled.none(
            lambda: self._parts, lambda p: bool(p.lost) or p.settled(self.round)
        ):
            return None
        # A node that is lost is not the program's fault, though its peers fail of it.
        program = bool(self._failures) and not self.losses.hit
        if program and self.verdict is None:
            saves = self.job.saves and not self._measuring
            resumed = next((p.assignment.checkpoint for p in self._parts if p.assignment), "")
            self.verdict = self._failures.spend(
                self.groups, saves=saves, resumed=resumed, begun=self._begun_at
            )
        if self.verdict is not None:
            return self._end(now)
        self.round += 1
        self._enter(Stage.RENDEZVOUS, now)
        self._rendezvous.begin(now)
        if not program:
            return []
        delay = self.budget.delay if self.job.nodes > 1 else 0.0
        if delay:
            self._rendezvous.pause(now + delay)
        return [Say(line) for line in self._failures.told(delay)]

    def _end(self, now: float) -> list[Effect]:
        self._enter(Stage.ENDING, now)
        self.losses.ending = True
        return self._orders()

    # Orders

    def _orders(self) -> list[Effect]:
        # One that was given up in error may still hear how the job ended.
        told = self.roster if self.stage is Stage.ENDING else self.roster.present
        return [self._order(p) for p in told if p.report is not None]

    def _order(self, peer: Peer) -> Send:
        look = self._choosing.look(peer) if self.stage is Stage.CHOOSING else None
        goal = GOAL[self.stage]
        return self._ordering.order(peer, goal, self.round, self.verdict, self._now, look)
