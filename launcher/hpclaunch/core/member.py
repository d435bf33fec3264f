"""One agent's own side: it obeys the head's orders and reports where it stands.

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

from .bond import Bond
from .effects import (
    CheckHealth,
    Effect,
    OpenStore,
    PrepareGpus,
    Say,
    Send,
    SignalWorkers,
    StartWorkers,
    StopWorkers,
)
from .events import (
    Diagnosed,
    Event,
    ForkServerReplaced,
    GpusReady,
    HeadReached,
    HealthFound,
    LeaseOver,
    PeerClosed,
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
from .messages import Order, Report
from .model import (
    EXIT_LOST,
    FORWARDED,
    HEAD,
    Assignment,
    Goal,
    Job,
    Phase,
    Trouble,
    Verdict,
)
from .stopping import Stopping
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
    ) -> None:
        self.job = job
        self.index = index
        self.place = job.places[index]
        self.nproc = nproc
        self.address = address
        self.incarnation = incarnation
        self.gpus = gpus
        self.phase = Phase.PREPARING
        self.round = -1
        self.verdict: Verdict | None = None
        self._head = Bond(job)
        self._fenced = False  # this round's workers, since the head was not heard
        self._serial = 0
        self._told: tuple[object, ...] = ()  # the news of the last report
        self._store_port = 0
        self._listening = False  # a store could begin at that port
        self._looked = False  # at this node's health, since the last round
        self._unfit = ""
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
        return self.index == HEAD

    def next_deadline(self) -> float:
        deadlines = [self._stopping.next_deadline()]
        if not self._is_head and self.phase is not Phase.ENDED:
            deadlines += [self._report_at, self._waiting.next_deadline()]
            if self.verdict is None:
                deadlines.append(self._head.given_up_at())
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
            case Received(message=Order() as order, address=address) if self._is_mine(order):
                self._waiting.end()
                if self._head.hear(order, address, now):
                    effects += [] if self._is_head else self._head.lease(order)
                    effects += self._obey(order, now)
            case HeadReached():
                self._report_at = now
                self._head.reopen()
            case PeerClosed(index=index) if index == HEAD:
                self._head.close(now)
            case StoreListening(port=port) if self.phase is Phase.PREPARING:
                self._store_port = port
                self._listening = True
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
                self._waiting.hurry(now)
                effects += self._stop(now)
        effects += self._deadlines(now, ticked=isinstance(event, Tick))
        return effects + self._report(now)

    # Orders

    def _is_mine(self, order: Order) -> bool:
        """Not for one that an earlier launch in the same job step had in my place."""
        return order.incarnation == self.incarnation

    def _obey(self, order: Order, now: float) -> list[Effect]:
        match order.goal:
            case Goal.RUN:
                part = order.assignment
                willing = not (self._signum or self._trouble or self._unfit)
                ready = self.phase is Phase.IDLE and willing
                if part is None or part.round <= self.round or not ready:
                    return []
                self.round = part.round
                self.phase = Phase.RUNNING
                self._assignment = part
                self._exits = Exits()
                self._fenced = False
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
        self._looked = not self.job.health
        return self._open_store() + ([] if self._looked else [CheckHealth()])

    def _open_store(self) -> list[Effect]:
        self.phase = Phase.PREPARING
        self._listening = False
        return [OpenStore()]

    def _prepared(self) -> None:
        if self.phase is Phase.PREPARING and self._listening and self._looked:
            self.phase = Phase.IDLE

    def _health_found(self, unfit: str, now: float) -> list[Effect]:
        """A node that was found unfit stays so: its workers would fail again, or hang."""
        self._unfit = self._unfit or unfit
        if self.phase is Phase.PREPARING:
            self._looked = True
            self._prepared()
        return self._stop(now, lost=True) if unfit else []

    def _forkserver_replaced(self, now: float) -> list[Effect]:
        if self.phase is Phase.DONE:
            return []  # its workers need nothing more, and the next round begins with a store
        if self.phase in (Phase.PREPARING, Phase.IDLE):
            return self._open_store()
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
        self._waiting.hurry(now)
        if again and self.phase is Phase.STOPPING:
            self._stopping.hurry(now)  # asked twice
            return []
        return self._stop(now)

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
        if self._is_head or self.verdict is not None:
            return effects
        if ticked and now >= self._head.given_up_at():
            return effects + self._end(self._head.verdict(now), now)
        if self._waiting.given_up(now):
            # The head never came, so nothing of ours is running.
            verdict = self._waiting.verdict(now, self._signum, self._trouble)
            return effects + self._end(verdict, now)
        return effects + self._waiting.notice(now)

    # Reports

    def _report(self, now: float) -> list[Effect]:
        """At once when there is news, and at every beat."""
        report = Report(
            host=self.place.host,
            incarnation=self.incarnation,
            serial=self._serial + 1,
            nproc=self.nproc,
            address=self.address,
            head_address=self._head.address,
            store_port=self._store_port,
            round=self.round,
            phase=self.phase,
            exits=self._exits.told(now),
            stop_signal=self._signum,
            trouble=self._trouble,
            gpus=self.gpus,
            unfit=self._unfit,
            heard=self._head.newest[1],
            fenced=self._fenced,
        )
        if report.news == self._told and now < self._report_at:
            return []
        self._report_at = math.inf if self._is_head else now + self.job.beat
        self._serial += 1
        self._told = report.news
        self._head.told(report.serial, now)
        return [Send(HEAD, report)]
