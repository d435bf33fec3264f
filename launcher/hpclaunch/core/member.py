"""One agent's own side: it obeys the head's orders and reports where it stands.

What its workers are at is the matter of work.py; which head it obeys, or who else is asked to lead,
that of following.py.
"""

from __future__ import annotations

import math

from .effects import Effect, Probe, Send
from .events import (
    AgentGone,
    CheckpointSeen,
    Diagnosed,
    Event,
    HeadClosed,
    HeadReached,
    Received,
    Signalled,
    Started,
    Tick,
    TroubleFound,
)
from .following import NOBODY, Following
from .looking import Looking
from .messages import Hint, Order, Report
from .model import FORWARDED, Job, Phase, Verdict
from .succession import Line
from .waiting import Waiting
from .work import Work


class Member:
    """`handle(event, now) -> effects`. Once the phase is ENDED the agent may leave; `verdict` says
    how the job ended."""

    def __init__(
        self,
        job: Job,
        index: int,
        nproc: int,
        address: str,
        incarnation: str,
        gpus: tuple[str, ...] = (),
        port: int = 0,
    ) -> None:
        self.job = job
        self.index = index
        self.place = job.places[index]
        self.nproc = nproc
        self.address = address
        self.incarnation = incarnation
        self.gpus = gpus
        self.port = port
        self.following = Following(job, Line(job.places), index)
        self.work = Work(job, self.place)
        self._looking = Looking()
        self._waiting = Waiting(job, self.place)
        self._signum = 0
        self._serial = 0
        self._told: tuple[object, ...] = ()  # the news of the last report
        self._report_at = 0.0

    @property
    def phase(self) -> Phase:
        return self.work.phase

    @property
    def round(self) -> int:
        return self.work.round

    @property
    def verdict(self) -> Verdict | None:
        return self.work.verdict

    @property
    def _is_head(self) -> bool:
        """Whether the head lives in this very process: then nothing between us can be lost."""
        return self.following.leads

    def next_deadline(self) -> float:
        deadlines = [self.work.next_deadline()]
        if self.phase is not Phase.ENDED:
            deadlines += [self._report_at, self._waiting.next_deadline()]
            if self.verdict is None:
                deadlines.append(self.following.next_deadline())
        return min(deadlines)

    def handle(self, event: Event, now: float) -> list[Effect]:
        if self.phase is Phase.ENDED:
            return []
        effects: list[Effect] = []
        match event:
            case Started():
                if not self._is_head:
                    self._waiting.begin(now)
                effects += self.work.prepare()
            case Received(message=Order() as order) if order.incarnation == self.incarnation:
                effects += self._hear(event, order, now)
            case Received(sender=sender, message=Hint() as hint) if self.verdict is None:
                effects += self.following.hint(sender, hint, now)
            case HeadReached(index=index):
                self._report_at = now
                if index == self.following.head:
                    self.following.bond.reopen()
            case HeadClosed(index=index) if index == self.following.head:
                self.following.bond.close(now)
                effects.append(Probe(index))
            case AgentGone(index=index) if self.verdict is None:
                effects += self.following.agent_gone(index, now)
                effects += self.work.stop(now, lost=True) if self.following.bond.gone else []
            case Diagnosed(text=text):
                effects += self._waiting.explain(text, now)
            case CheckpointSeen(seen=seen):
                self._looking.saw(seen)
            case Signalled(signum=signum):
                effects += self._signalled(signum, now)
            case TroubleFound(trouble=trouble) if self.work.trouble is None:
                self.work.trouble = trouble
                self._hurry(now)
                effects += self.work.stop(now)
            case _:
                effects += self.work.handle(event, now)
        effects += self._deadlines(now, ticked=isinstance(event, Tick))
        return effects + self._report(now)

    def _hear(self, event: Received, order: Order, now: float) -> list[Effect]:
        following, before = self.following, self.following.office
        if not following.hear(event.sender, order, event.address, now):
            return []
        self._waiting.end()
        effects = following.found()
        effects += self.work.leave_world(now) if following.office != before else []
        effects += [] if self._is_head else following.bond.lease(order)
        effects += self._looking.obey(order.look)
        willing = not (self._signum or self.work.trouble)
        return effects + self.work.obey(order, now, willing=willing)

    def _signalled(self, signum: int, now: float) -> list[Effect]:
        if signum in FORWARDED:
            return self.work.signal(signum)
        again = bool(self._signum)
        self._signum = self._signum or signum
        self._hurry(now)
        return self.work.stop_again(now) if again else self.work.stop(now)

    def _hurry(self, now: float) -> None:
        self._waiting.hurry(now)
        self.following.hurry()

    def _deadlines(self, now: float, *, ticked: bool) -> list[Effect]:
        effects = self.work.due(now)
        if self.verdict is not None or not ticked:
            return effects
        effects += self.following.tick(now)
        verdict = self.following.verdict(now)
        if self._waiting.given_up(now):
            # The head never came, so nothing of ours is running.
            verdict = self._waiting.verdict(now, self._signum, self.work.trouble)
        if verdict is not None:
            return effects + self.work.end(verdict, now)
        if notice := self._waiting.notice(now):
            effects += notice  # it may have died before we came, and another leads
            effects += self.following.look_around(now)
        return effects

    def _report(self, now: float) -> list[Effect]:
        """At once when there is news, and at every beat."""
        following, work = self.following, self.work
        report = Report(
            host=self.place.host,
            incarnation=self.incarnation,
            serial=self._serial + 1,
            nproc=self.nproc,
            address=self.address,
            head_address=following.bond.address,
            store_port=work.readiness.store_port,
            round=work.round,
            phase=work.phase,
            exits=work.exits.told(now),
            stop_signal=self._signum,
            trouble=work.trouble,
            gpus=self.gpus,
            unfit=work.readiness.unfit,
            heard=following.bond.newest,
            fenced=work.fenced,
            group=work.part.group_rank if work.part is not None else -1,
            term=following.term,
            seeking=following.seeking,
            edition=-1 if following.roll is None else following.roll.edition,
            roll=following.roll if following.seeking != NOBODY else None,
            port=self.port,
            seen=self._looking.seen,
        )
        if report.news == self._told and now < self._report_at:
            return []
        alone = following.asked == (self.index,)
        self._report_at = math.inf if alone else now + self.job.beat
        self._serial += 1
        self._told = report.news
        following.bond.told(report.serial, now)
        return [Send(agent, report) for agent in following.asked]
