"""One agent's own side: it obeys the head's orders and reports where it stands.

Which head that is, or who else is asked to lead, is the matter of following.py.

    PREPARING -> IDLE -> RUNNING -> DONE -> PREPARING ...
                            |                  ^
                            +---> STOPPING ----+        and from anywhere to ENDED

A fork server that is killed takes its workers and the store's socket along: whoever had any is
PREPARING again.

A failed worker ends the round at once, without asking: by the law of the house the round is lost,
and every millisecond that the other workers of this node keep waiting in a collective is wasted.
"""

from __future__ import annotations

import math

from .effects import (
    Effect,
    PrepareGpus,
    Probe,
    Say,
    Send,
    SignalWorkers,
    StartWorkers,
    StopWorkers,
)
from .events import (
    AgentGone,
    Diagnosed,
    Event,
    ForkServerReplaced,
    GpusReady,
    HeadClosed,
    HeadReached,
    HealthFound,
    LeaseOver,
    Received,
    Signalled,
    Started,
    StoreListening,
    Tick,
    TroubleFound,
    WorkerExited,
    WorkersGone,
)
from .exits import Exits
from .following import NOBODY, Following
from .messages import Hint, Order, Report
from .model import (
    EXIT_LOST,
    FORWARDED,
    Assignment,
    Goal,
    Job,
    Phase,
    Trouble,
    Verdict,
)
from .readiness import Readiness
from .stopping import Stopping
from .succession import Line
from .waiting import Waiting


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
        self.phase = Phase.PREPARING
        self.round = -1
        self.verdict: Verdict | None = None
        self.following = Following(job, Line(job.places), index)
        self._fenced = False  # this round's workers, since the head was not heard
        self._serial = 0
        self._told: tuple[object, ...] = ()  # the news of the last report
        self._readiness = Readiness(job)
        self._waits_for_gpus = False
        self._assignment: Assignment | None = None
        self._exits = Exits()
        self._signum = 0
        self._trouble: Trouble | None = None
        self._report_at = 0.0
        self._stopping = Stopping(job)
        self._waiting = Waiting(job, self.place)

    @property
    def _is_head(self) -> bool:
        """Whether the head lives in this very process: then nothing between us can be lost."""
        return self.following.leads

    def next_deadline(self) -> float:
        deadlines = [self._stopping.next_deadline()]
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
                effects += self._prepare()
            case Received(message=Order() as order) if order.incarnation == self.incarnation:
                effects += self._hear(event, order, now)
            case Received(message=Hint() as hint) if self.verdict is None:
                effects += self.following.hint(hint, now)
            case HeadReached(index=index):
                self._report_at = now
                if index == self.following.head:
                    self.following.bond.reopen()
            case HeadClosed(index=index) if index == self.following.head:
                self.following.bond.close(now)
                effects.append(Probe(index))
            case AgentGone(index=index) if self.verdict is None:
                effects += self.following.agent_gone(index, now)
                effects += self._stop(now, lost=True) if self.following.bond.gone else []
            case StoreListening(port=port) if self.phase is Phase.PREPARING:
                self._readiness.listening(port)
                self._prepared()
            case HealthFound(unfit=unfit):
                effects += self._health_found(unfit, now)
            case GpusReady(round=number) if self._waits_for_gpus and number == self.round:
                assert self._assignment is not None, "an order to run came with it"
                self._waits_for_gpus = False
                effects.append(StartWorkers(self._assignment))
            case Diagnosed(text=text):
                effects += self._waiting.explain(text, now)
            case WorkerExited():
                effects += self._worker_exited(event, now)
            case WorkersGone():
                effects += self._workers_gone()
            case LeaseOver():
                effects += self._lease_over(now)
            case ForkServerReplaced():
                effects += self._forkserver_replaced(now)
            case Signalled(signum=signum):
                effects += self._signalled(signum, now)
            case TroubleFound(trouble=trouble) if self._trouble is None:
                self._trouble = trouble
                self._hurry(now)
                effects += self._stop(now)
        effects += self._deadlines(now, ticked=isinstance(event, Tick))
        return effects + self._report(now)

    # Orders

    def _hear(self, event: Received, order: Order, now: float) -> list[Effect]:
        following, before = self.following, self.following.head
        if not following.hear(event.sender, order, event.address, now):
            return []
        self._waiting.end()
        effects = following.found()
        if following.head != before:  # a world without us, and we are to be in the next one
            effects += self._prepare() if self.phase is Phase.DONE else self._stop(now, lost=True)
        effects += [] if self._is_head else following.bond.lease(order)
        return effects + self._obey(order, now)

    def _obey(self, order: Order, now: float) -> list[Effect]:
        if self.phase is Phase.RUNNING and order.round > self.round:
            return self._stop(now, lost=True)  # the others are further already
        match order.goal:
            case Goal.RUN:
                part = order.assignment
                willing = not (self._signum or self._trouble or self._readiness.unfit)
                ready = self.phase is Phase.IDLE and willing
                if part is None or part.round <= self.round or not ready:
                    return []
                self.round = part.round
                self.phase = Phase.RUNNING
                self._assignment = part
                self._exits = Exits()
                self._fenced = False
                if part.hosts_store and part.store_port != self._readiness.store_port:
                    return self._forkserver_replaced(now)  # which the head has not heard yet
                self._waits_for_gpus = bool(part.shares.of)
                return [PrepareGpus(part) if self._waits_for_gpus else StartWorkers(part)]
            case Goal.STOP:
                return self._leave_round(order.round, now, lost=order.lost)
            case Goal.END:
                assert order.verdict is not None, "an END order carries the verdict"
                return self._end(order.verdict, now)
            case Goal.WAIT:
                return []

    def _leave_round(self, number: int, now: float, *, lost: bool) -> list[Effect]:
        if self.phase is Phase.IDLE and self.round < number:
            # The order to run it never came, or came too late: it is over for us as well.
            self.round = number
            self._exits = Exits()
            return []
        if self.round != number:
            return []
        if self.phase is Phase.DONE:
            return self._prepare()
        return self._stop(now, lost=lost)

    def _end(self, verdict: Verdict, now: float) -> list[Effect]:
        """The job is over for this agent; it leaves once its workers have."""
        self.verdict = self.verdict or verdict
        if self.phase in (Phase.RUNNING, Phase.STOPPING):
            return self._stop(now)
        self.phase = Phase.ENDED
        return []

    # Workers

    def _lease_over(self, now: float) -> list[Effect]:
        if self.phase is not Phase.RUNNING:
            return []
        self._fenced = True
        effects = self._stop(now, lost=True)
        self._stopping.hurry(now)
        return effects

    def _stop(self, now: float, *, lost: bool = False) -> list[Effect]:
        if self.phase is not Phase.RUNNING:
            return []
        self.phase = Phase.STOPPING
        if self._waits_for_gpus:
            return self._workers_gone()
        self._stopping.begin(now, lost=lost)
        return [StopWorkers()]

    def _worker_exited(self, event: WorkerExited, now: float) -> list[Effect]:
        self._exits.add(event, now, stopped=self.phase is not Phase.RUNNING)
        return self._stop(now, lost=True) if event.code else []

    def _workers_gone(self) -> list[Effect]:
        if self.phase not in (Phase.RUNNING, Phase.STOPPING, Phase.STUCK):
            return []
        self._stopping.over()
        self._waits_for_gpus = False
        if self.verdict is not None:
            self.phase = Phase.ENDED
            return []
        if self.phase is Phase.RUNNING:
            self.phase = Phase.DONE
            return []
        return self._prepare()

    def _prepare(self) -> list[Effect]:
        self.phase = Phase.PREPARING
        return self._readiness.begin()

    def _prepared(self) -> None:
        if self.phase is Phase.PREPARING and self._readiness.full:
            self.phase = Phase.IDLE

    def _health_found(self, unfit: str, now: float) -> list[Effect]:
        self._readiness.looked(unfit)
        self._prepared()
        return self._stop(now, lost=True) if unfit else []

    def _forkserver_replaced(self, now: float) -> list[Effect]:
        if self.phase is Phase.DONE:
            return []  # its workers need nothing more, and the next round begins with a store
        if self.phase in (Phase.PREPARING, Phase.IDLE):
            self.phase = Phase.PREPARING
            return self._readiness.open_store()
        assert self._assignment is not None, "there are workers in a round only"
        stopped = self.phase is not Phase.RUNNING
        if self._exits.lose(self._assignment, now, stopped=stopped) and not stopped:
            self.phase = Phase.STOPPING
        return self._workers_gone()

    # Signals

    def _signalled(self, signum: int, now: float) -> list[Effect]:
        if signum in FORWARDED:
            return [SignalWorkers(signum)] if self.phase is Phase.RUNNING else []
        again = bool(self._signum)
        self._signum = self._signum or signum
        self._hurry(now)
        if again and self.phase is Phase.STOPPING:
            self._stopping.hurry(now)  # asked twice
            return []
        return self._stop(now)

    def _hurry(self, now: float) -> None:
        self._waiting.hurry(now)
        self.following.hurry()

    # Time

    def _deadlines(self, now: float, *, ticked: bool) -> list[Effect]:
        effects = self._stopping.due(now)
        if self._stopping.given_up(now):
            reason = (
                f"workers on {self.place.host} are still there {self.job.unkillable:.0f} s after "
                "SIGKILL (a hung file system or driver?)"
            )
            self._trouble = self._trouble or Trouble(EXIT_LOST, reason)
            self.phase = Phase.STUCK
            if self.verdict is not None:
                self.phase = Phase.ENDED
                return [Say(reason)]
        if self.verdict is not None or not ticked:
            return effects
        effects += self.following.tick(now)
        verdict = self.following.verdict(now)
        if self._waiting.given_up(now):
            # The head never came, so nothing of ours is running.
            verdict = self._waiting.verdict(now, self._signum, self._trouble)
        if verdict is not None:
            return effects + self._end(verdict, now)
        if notice := self._waiting.notice(now):
            effects += notice  # it may have died before we came, and another leads
            effects += self.following.look_around(now)
        return effects

    # Reports

    def _report(self, now: float) -> list[Effect]:
        """At once when there is news, and at every beat."""
        following, part = self.following, self._assignment
        report = Report(
            host=self.place.host,
            incarnation=self.incarnation,
            serial=self._serial + 1,
            nproc=self.nproc,
            address=self.address,
            head_address=following.bond.address,
            store_port=self._readiness.store_port,
            round=self.round,
            phase=self.phase,
            exits=self._exits.told(now),
            stop_signal=self._signum,
            trouble=self._trouble,
            gpus=self.gpus,
            unfit=self._readiness.unfit,
            heard=following.bond.newest,
            fenced=self._fenced,
            group=part.group_rank if part is not None else -1,
            term=following.term,
            seeking=following.seeking,
            edition=-1 if following.roll is None else following.roll.edition,
            roll=following.roll if following.seeking != NOBODY else None,
            port=self.port,
        )
        if report.news == self._told and now < self._report_at:
            return []
        alone = following.asked == (self.index,)
        self._report_at = math.inf if alone else now + self.job.beat
        self._serial += 1
        self._told = report.news
        following.bond.told(report.serial, now)
        return [Send(agent, report) for agent in following.asked]
