"""The head: the state machine of a job's rounds.

Every transition is in `_NEXT` and `_step`. The head keeps the newest report of every agent and
decides from that state alone, never from the fact that a message arrived; so it does not matter
whether a message came once, twice or late.
"""

from __future__ import annotations

import math
from enum import Enum

from . import aside, restarts
from .advice import advise
from .assigning import assign
from .effects import ChooseCheckpoint, Effect, Say, Send
from .events import CheckpointChosen, Diagnosed, Event, PeerClosed, Received, Started, Tick
from .gathering import FIRST_NOTICE, NEXT_NOTICE, Gathering
from .messages import Order, Report
from .model import HEAD, Failure, Goal, Job, Phase, Verdict
from .preface import changes, layout, preface
from .roster import Laggards, Peer, Roster, all_in
from .seating import seated


class Stage(Enum):
    GATHERING = "gathering"  # until every agent is ready for the round
    CHOOSING = "choosing"  # which checkpoint it starts from
    RUNNING = "running"
    STOPPING = "stopping"  # until no worker of the round is left anywhere
    ENDING = "ending"  # until every agent has the verdict
    ENDED = "ended"


_NEXT = {
    Stage.GATHERING: {Stage.CHOOSING, Stage.ENDING},
    Stage.CHOOSING: {Stage.RUNNING, Stage.GATHERING, Stage.ENDING},
    Stage.RUNNING: {Stage.STOPPING, Stage.ENDING},
    Stage.STOPPING: {Stage.GATHERING, Stage.ENDING},
    Stage.ENDING: {Stage.ENDED},
    Stage.ENDED: set(),
}

_GOAL = {
    Stage.GATHERING: Goal.WAIT,
    Stage.CHOOSING: Goal.WAIT,
    Stage.RUNNING: Goal.RUN,
    Stage.STOPPING: Goal.STOP,
    Stage.ENDING: Goal.END,
    Stage.ENDED: Goal.END,
}


class Head:
    """`handle(event, now) -> effects`; the job is over once `stage` is ENDED."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.term = 1
        self.stage = Stage.GATHERING
        self.round = 0
        self.budget = restarts.Budget(job.max_restarts)
        self.verdict: Verdict | None = None
        self.roster = Roster(job)
        self._gathering = Gathering(job, self.roster)
        self._measuring = job.preflight  # the next round, or this one, is the preflight
        self._parts: list[Peer] = []  # those who have workers in this round
        self.groups: list[int] = []  # their nodes in the order of the ranks
        self._failures: dict[int, Failure] = {}  # of this round, by rank
        self._unsettled = Laggards()
        self._excused = False  # a node was lost in this round: not the program's fault
        self._checkpoint: CheckpointChosen | None = None
        self._advised = {""}  # what has been said already
        self._announced: set[int] = set()  # the nodes that were set aside
        self._serial = 0
        self._beat_at = math.inf
        self._look_at = math.inf  # nobody is lost before
        self._now = 0.0
        self._since = 0.0  # when this stage began
        self._notice_at = math.inf  # about a checkpoint that is long in coming

    def next_deadline(self) -> float:
        if self.stage is Stage.ENDED:
            return math.inf
        deadlines = [self._beat_at]
        deadlines.append(self._look_at)
        if self.stage is Stage.CHOOSING and self._checkpoint is None:
            deadlines.append(self._notice_at)
        if self.stage is Stage.GATHERING:
            deadlines.append(self._gathering.next_deadline())
        if self.stage is Stage.ENDING:
            deadlines.append(self._since + self.job.parting)
        return min(deadlines)

    def handle(self, event: Event, now: float) -> list[Effect]:
        if self.stage is Stage.ENDED:
            return []
        self._now = now
        effects: list[Effect] = []
        news = None  # whose report it is, if it is a new one and not our own
        match event:
            case Started():
                self._since = now
                self._gathering.begin(now)
                self._beat_at = now + self.job.beat if self.roster.others else math.inf
            case Received(sender=sender, message=Report() as report):
                if self.roster[sender].accept(report, now):
                    news = sender if sender != HEAD else None
                    effects += self._note(self.roster[sender], report, now)
            case PeerClosed(index=index) if index < len(self.roster):
                self.roster[index].contact.close(now)
                self._look_at = min(self._look_at, self.roster[index].deadline(self.job))
            case CheckpointChosen() if self.stage is Stage.CHOOSING:
                self._checkpoint = event
            case Diagnosed(text=text) if self.stage is Stage.GATHERING:
                effects += self._gathering.explain(text, now)
        if isinstance(event, Tick) and now >= self._look_at:
            effects += self._look_for_lost(now)
        while (step := self._step(now)) is not None:
            effects += step
        if news is not None and not any(isinstance(e, Send) and e.to == news for e in effects):
            effects.append(self._order(self.roster[news]))  # who hears nothing takes us for lost
        if now >= self._beat_at:
            self._beat_at = now + self.job.beat
            effects += [self._order(p) for p in self.roster.others if p.report]
        return effects

    # What is known

    def _note(self, peer: Peer, report: Report, now: float) -> list[Effect]:
        self.roster.absent.discard(peer.place.index)
        if peer.place.index != HEAD:
            self._look_at = min(self._look_at, peer.deadline(self.job))
        if report.round == self.round:
            for e in report.exits:
                if restarts.failed(e) and e.rank not in self._failures:
                    self._failures[e.rank] = restarts.failure(e, self.round, peer.host, now)
        if peer.assignment is not None:
            fenced = report.fenced and report.round == self.round
            self._excused = self._excused or fenced or bool(peer.unfit)
        if report.unfit:
            self.roster.changed()
        if self.verdict is None:
            self.verdict = self._verdict_of(report)
        effects: list[Effect] = []
        if peer.unfit and peer.place.node not in self._announced and not self.job.alone:
            self._announced.add(peer.place.node)
            effects.append(Say(aside.announce(peer, self.job)))
        if report.phase is Phase.ENDED and self.stage is not Stage.ENDING and not peer.lost:
            self._excused = self._excused or peer.assignment is not None
            peer.lost, peer.gone = f"the agent on {peer.host} has left: it did not hear us", True
            self.roster.changed()
            effects.append(Say(peer.lost))
        if peer.come_back():
            self.roster.changed()
            effects.append(Say(f"{peer.host} is back"))
        return effects

    def _verdict_of(self, report: Report) -> Verdict | None:
        if report.trouble is not None:
            return Verdict(report.trouble.code, report.trouble.reason, restarts=self.budget.total)
        if report.stop_signal:
            name = restarts.signal_name(report.stop_signal)
            code = 128 + report.stop_signal
            return Verdict(code, f"ended by {name} on {report.host}", restarts=self.budget.total)
        return None

    def _look_for_lost(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for peer in self.roster.others:
            if not peer.look(now, self.job):
                continue
            self._excused = self._excused or peer.assignment is not None
            if self.stage is not Stage.ENDING:  # else it left before its last word arrived
                effects.append(Say(peer.lost))
        self.roster.changed()
        self._look_at = min((p.deadline(self.job) for p in self.roster.others), default=math.inf)
        return effects

    # What to do

    def _enter(self, stage: Stage, now: float) -> None:
        assert stage in _NEXT[self.stage], f"the head cannot go from {self.stage} to {stage}"
        self.stage = stage
        self._since = now

    def _step(self, now: float) -> list[Effect] | None:
        """One transition with its effects, or None when the job stays where it is."""
        match self.stage:
            case Stage.GATHERING:
                return self._gather(now)
            case Stage.CHOOSING:
                return self._choose(now)
            case Stage.RUNNING:
                return self._watch(now)
            case Stage.STOPPING:
                return self._settle(now)
            case Stage.ENDING:
                told = self._all_told()
                if not told and now < self._since + self.job.parting:
                    return None
                self._enter(Stage.ENDED, now)
                return []
            case Stage.ENDED:
                return None

    def _gather(self, now: float) -> list[Effect] | None:
        self.verdict = self.verdict or self._gathering.verdict(now, self.budget.total)
        if self.verdict is not None:
            return self._end(now)
        if not self._gathering.ready(now, self._next_groups):
            return self._gathering.notice(now) or None
        self._checkpoint = None
        self._enter(Stage.CHOOSING, now)
        self._notice_at = now + FIRST_NOTICE
        return [ChooseCheckpoint()]

    def _next_groups(self) -> list[int]:
        return seated(self.groups, sorted(self.roster.nodes), self.job.most)

    def _choose(self, now: float) -> list[Effect] | None:
        self.verdict = self.verdict or self._gathering.verdict(now, self.budget.total)
        if self.verdict is not None:
            return self._end(now)
        if self._gathering.is_short:
            self._enter(Stage.GATHERING, now)
            return []
        if self._checkpoint is not None:
            # One whose fork server was killed meanwhile has no store yet; the port of its last one
            # is dead, and whoever began with that would wait for a store that nobody serves.
            if not self._gathering.ready(now, self._next_groups):
                return None
            self.verdict = None if self._measuring else self.budget.begin(self._checkpoint.path)
            if self.verdict is not None:
                return self._end(now)
            return self._start(self._checkpoint, self._next_groups(), now)
        if now >= self._notice_at:
            self._notice_at = now + NEXT_NOTICE
            return [Say(f"looking for a complete checkpoint since {now - self._since:.0f} s")]
        return None

    def _start(self, checkpoint: CheckpointChosen, groups: list[int], now: float) -> list[Effect]:
        last, self.groups = self.groups, groups
        taking = set(groups)
        self._parts = [p for p in self.roster if p.place.node in taking]
        assigned = assign(
            self.job,
            {p.place.index: p.report for p in self._parts if p.report is not None},
            groups=groups,
            number=self.round,
            restarts=self.budget.total,
            checkpoint="" if self._measuring else checkpoint.path,
            preflight=self._measuring,
        )
        for peer in self.roster:
            peer.assignment = assigned.get(peer.place.index)
        self._failures = {}
        self._excused = False
        self._enter(Stage.RUNNING, now)
        parts = [(p.host, p.assignment) for p in self._parts if p.assignment is not None]
        lines = layout(parts, asked=self.job.isolate) if self.round == 0 else []
        hosts = {p.place.node: p.host for p in self.roster}
        lines += changes(last, groups, hosts) + preface(parts, checkpoint)
        return [*(Say(line) for line in lines), *self._orders()]

    def _watch(self, now: float) -> list[Effect] | None:
        failed = any(not f.stopped for f in self._failures.values())
        done = all_in(Phase.DONE, self.round, self._parts)
        if done and self._measuring:
            self._measuring = False
            failed = True  # not quite, but this round is to end for the next one as well
        if self.verdict is not None or failed or (self._excused and not done):
            self._enter(Stage.STOPPING, now)
            return self._orders()
        if not done:
            return None
        again = f" after {_count(self.budget.total, 'restart')}" if self.budget.total else ""
        self.verdict = Verdict(0, f"all workers ended with 0{again}", restarts=self.budget.total)
        return self._end(now)

    def _settle(self, now: float) -> list[Effect] | None:
        """No worker of this round may be left anywhere before the next one or the end."""
        if not self._unsettled.none(
            lambda: self._parts, lambda p: bool(p.lost) or p.settled(self.round)
        ):
            return None
        # A node that is lost is not the program's fault, though its peers fail of it.
        program = bool(self._failures) and not self._excused
        if program and self.verdict is None:
            failures = self._failures.values()
            saves = self.job.saves and not self._measuring
            spares = bool(self.roster.nodes.difference(self.groups))
            self.verdict = self.budget.spend(failures, saves=saves, spares=spares)
        if self.verdict is not None:
            return self._end(now)
        self.round += 1
        self._enter(Stage.GATHERING, now)
        self._gathering.begin(now)
        if not program:
            return []
        cause = restarts.in_order(self._failures.values())[0]
        said: list[Effect] = [Say(f"{restarts.how(cause)}; {self.budget.words}")]
        if self.budget.suspect:
            said.append(Say(aside.shun(self.roster, self.budget.suspect)))
        # A script that is at fault fails again and again: say what can be done about it now.
        if not cause.signal and (advice := advise(cause)) not in self._advised:
            self._advised.add(advice)
            said.append(Say(f"advice: {advice}"))
        return said

    def _end(self, now: float) -> list[Effect]:
        self._enter(Stage.ENDING, now)
        return self._orders()

    def _all_told(self) -> bool:
        return all(
            p.report is not None and p.report.phase is Phase.ENDED for p in self.roster.present
        )

    # Orders

    def _orders(self) -> list[Effect]:
        # One that was given up in error may still hear how the job ended.
        told = self.roster if self.stage is Stage.ENDING else self.roster.present
        return [self._order(p) for p in told if p.report is not None]

    def _order(self, peer: Peer) -> Send:
        assert peer.report is not None, "an agent is answered once it has been heard"
        self._serial += 1
        goal, number = _GOAL[self.stage], self.round
        if peer.lost and goal is not Goal.END:
            goal, number = Goal.STOP, peer.report.round  # its world has gone on without it
        needs = goal is Goal.RUN and peer.report.round < self.round
        order = Order(
            term=self.term,
            serial=self._serial,
            incarnation=peer.report.incarnation,
            goal=goal,
            round=number,
            assignment=peer.assignment if needs else None,
            verdict=self.verdict if goal is Goal.END else None,
            lost=goal is Goal.STOP and self.verdict is None,
            heard=0 if peer.lost or peer.muted is not None else peer.report.serial,
        )
        peer.echo.send(self._serial, self._now)
        return Send(peer.place.index, order)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
