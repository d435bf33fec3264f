"""The worker group: an agent's own workers, their phases in a round, and how they are controlled.

When a worker fails, the agent stops the others at once, before the head orders it: the round is
lost in any case, and the other workers would only wait in a collective.

When the fork server is killed, its workers and the store's socket are gone with it, so the agent
prepares again.
"""

from __future__ import annotations

from collections.abc import Sequence
from signal import SIGKILL, SIGTERM

from ..ending.negotiation import Offers
from ..hangs.suspicion import Suspicion
from ..protocol import events
from ..protocol.effects import (
    AwaitStillness,
    CheckHealth,
    Effect,
    OpenStore,
    PrepareGpus,
    Record,
    SignalWorkers,
    StartWorkers,
    StopWorkers,
)
from ..protocol.facts import WorkersSurvive
from ..protocol.gpu_use import GpuUse
from ..protocol.messages import Order
from ..protocol.model import (
    Answer,
    Assignment,
    Doing,
    Goal,
    Job,
    NoticeAnswer,
    Phase,
    Place,
    Progress,
    RankVitals,
    Trouble,
    Verdict,
)
from .moments import WorkersMoment, of_gpus
from .round_notes import Exits, Queries, Spending
from .stopping import Stopping

# Which phase may follow which.
PHASES = {
    Phase.PREPARING: {Phase.IDLE, Phase.ENDED},
    Phase.IDLE: {Phase.PREPARING, Phase.RUNNING, Phase.ENDED},
    Phase.RUNNING: {Phase.STOPPING, Phase.DONE},
    Phase.STOPPING: {Phase.PREPARING, Phase.STUCK, Phase.ENDED},
    Phase.STUCK: {Phase.PREPARING, Phase.ENDED},
    Phase.DONE: {Phase.PREPARING, Phase.ENDED},
    Phase.ENDED: set(),
}


class WorkerGroup:
    """The workers of one agent. Once the phase is ENDED, the agent may leave."""

    def __init__(self, job: Job, place: Place) -> None:
        self.job = job
        self.place = place
        self.phase = Phase.PREPARING
        self.round = -1
        self.verdict: Verdict | None = None  # how the job ended
        self.trouble: Trouble | None = None
        self.part: Assignment | None = None  # this agent's part in `round`; None: it had none
        self.exits = Exits()
        self.readiness = Readiness(job)
        self._suspicion = Suspicion(job.timing)
        self._seen_at = 0.0  # when the workers were seen last
        self._awaited: tuple[float, ...] = ()  # the stillness that the fork server is to report
        self._queries = Queries()
        self._offers = Offers()
        self.passed = (0, 0)  # the last signal for the workers of this round, and how many came
        self.spending = Spending()
        self._waits_for_gpus = False
        self._stopping = Stopping(job, place.host)

    def next_deadline(self) -> float:
        return self._stopping.next_deadline()

    @property
    def progress(self) -> Progress | None:
        return self._suspicion.report() if self.phase is Phase.RUNNING else None

    @property
    def answers(self) -> tuple[Answer, ...]:
        return self._queries.answers if self.phase is Phase.RUNNING else ()

    def moment(
        self, now: float, vitals: Sequence[RankVitals], gpus: Sequence[GpuUse]
    ) -> WorkersMoment | None:
        if self.part is None:
            return None
        progress, spent = self._suspicion.report(), self.spending.report()
        elapsed = self.spending.elapsed(now) / 1000
        memory = [worker.memory for worker in vitals]
        return WorkersMoment(
            self.part.first_rank,
            self.part.nproc,
            round(elapsed, 2),
            (*spent.times, spent.doing.value),
            steps=0 if progress is None else max(progress.steps, default=0),
            seen=round(max(0.0, elapsed - (now - self._seen_at)), 2),
            step=max((worker.step for worker in vitals), default=0),
            memory=sum(memory),
            largest=max(memory, default=0),
            gpus=of_gpus(gpus) if gpus else None,
        )

    @property
    def notice(self) -> NoticeAnswer | None:
        return self._offers.answer

    def _enter(self, phase: Phase) -> None:
        if phase is not self.phase:
            assert phase in PHASES[self.phase], f"an agent cannot go from {self.phase} to {phase}"
            self.phase = phase

    def handle(self, event: events.Event, now: float) -> list[Effect]:
        match event:
            case events.StoreListening(port=port) if self.phase is Phase.PREPARING:
                self.readiness.listening(port)
                self._check_ready()
            case events.HealthFound(unfit=unfit):
                self.readiness.health_checked(unfit)
                self._check_ready()
                return self.stop(now, lost=True) if unfit else []
            case events.StagerFound():
                self.readiness.stager = event
                if not self.readiness.is_complete and self.phase is Phase.IDLE:
                    self._enter(Phase.PREPARING)
                self._check_ready()
            case events.GpusReady(round=number) if self._waits_for_gpus and number == self.round:
                assert self.part is not None, "an order to run came with it"
                self._waits_for_gpus = False
                return [StartWorkers(self.part)]
            case events.WorkerExited():
                self.exits.add(event, now, stopped=self._was_stopped(event))
                return self.stop(now, lost=True) if event.code else []
            case events.StoreEnded():
                return self._store_ended(event, now)
            case events.WorkersSeen():
                self._suspicion.saw(event)
                self._seen_at = now
                self.spending.saw(event.spent, Doing(event.doing + 1), now)
                return self._await_stillness()
            case events.WorkersAnswered(answer=answer):
                self._queries.hear(answer)
            case events.NoticeOffered(answer=answer):
                self._offers.hear(answer)
            case events.NoticeUnheard(number=number):
                self._offers.unheard(number)
            case events.NoticeTaken(number=number, last=last):
                self._offers.taken(number, last=last)
            case events.LeftBehind(leftovers=leftovers):
                self._suspicion.forget()
                stopped = self.phase is not Phase.RUNNING
                self._stopping.leave_behind(leftovers, now, stopped=stopped)
            case events.WorkersGone(spent=spent):
                # A worker's time ends with its own exit, not with the last one: hence the mean.
                self.spending.saw(spent, Doing.NOTHING, self.exits.mean_time(now))
                return self._workers_gone()
            case events.LeaseOver():
                return self._lease_over(now)
            case events.ForkServerReplaced():
                return self._fork_server_lost(now)
        return []

    # Orders

    def obey(self, order: Order, now: float, *, willing: bool) -> list[Effect]:
        """Do what an order asks for. An agent that is not `willing` starts no workers: it is in
        trouble, or was asked to end the job.
        """
        if self.phase is Phase.RUNNING and order.round > self.round:
            return self.stop(now, lost=True)  # the others have ended this round already
        match order.goal:
            case Goal.RUN:
                begun = self._run(order.assignment, now) if willing else []
                return begun + self._heed(order)
            case Goal.STOP:
                return self._leave_round(order, now)
            case Goal.END:
                assert order.verdict is not None, "an END order carries the verdict"
                return self.end(order.verdict, now)
            case Goal.WAIT:
                return []

    def _run(self, part: Assignment | None, now: float) -> list[Effect]:
        ready = self.phase is Phase.IDLE and not self.readiness.unfit
        if part is None or part.round <= self.round or not ready:
            return []
        self.round = part.round
        self._enter(Phase.RUNNING)
        self.part = part
        self.exits = Exits()
        self._suspicion = Suspicion(self.job.timing, trained=self._suspicion.trained)
        self._awaited = ()
        self._queries, self._offers, self.passed = Queries(), Offers(), (0, 0)
        self.spending.begin(now)
        if part.hosts_store and part.store_port != self.readiness.store_port:
            # The order names the store of an earlier fork server, whose loss the head has not heard
            # of yet.
            return self._fork_server_lost(now)
        self._waits_for_gpus = bool(part.shares.of)
        return [PrepareGpus(part) if self._waits_for_gpus else StartWorkers(part)]

    def _await_stillness(self) -> list[Effect]:
        if self.phase is not Phase.RUNNING or self._suspicion.awaited == self._awaited:
            return []
        self._awaited = self._suspicion.awaited
        return [AwaitStillness(self._awaited)]

    def _heed(self, order: Order) -> list[Effect]:
        started = self.phase is Phase.RUNNING and not self._waits_for_gpus
        if not started or order.round != self.round:
            return []
        return self._queries.obey(order.queries) + self._offers.obey(order.notice)

    def _leave_round(self, order: Order, now: float) -> list[Effect]:
        number = order.round
        if self.phase is Phase.IDLE and self.round < number:
            # We never began this round: we had no part in it, or the order to run it came late.
            self.round, self.part = number, None
            self.exits, self.spending = Exits(), Spending()
            return []
        if self.round != number:
            return []
        if self.phase is Phase.DONE:
            return self.prepare()
        return self.stop(now, lost=order.lost, signum=order.signum)

    def head_changed(self, now: float) -> list[Effect]:
        """Leave the round of the old head: the new one begins another."""
        return self.prepare() if self.phase is Phase.DONE else self.stop(now, lost=True)

    def end(self, verdict: Verdict, now: float) -> list[Effect]:
        """End the job for this agent. It leaves once its workers are gone."""
        self.verdict = self.verdict or verdict
        if self.phase in (Phase.RUNNING, Phase.STOPPING):
            return self.stop(now, signum=verdict.signum)
        self._enter(Phase.ENDED)
        return []

    # Before a round

    def prepare(self) -> list[Effect]:
        self._enter(Phase.PREPARING)
        return self.readiness.begin()

    def _check_ready(self) -> None:
        if self.phase is Phase.PREPARING and self.readiness.is_complete:
            self._enter(Phase.IDLE)

    # The end of a round

    def stop(self, now: float, *, lost: bool = False, signum: int = SIGTERM) -> list[Effect]:
        """Stop the workers if they are running. `lost`: the round is lost, and the workers may wait
        for one that has failed.
        """
        if self.phase is not Phase.RUNNING:
            return []
        self._enter(Phase.STOPPING)
        if self._waits_for_gpus:
            return self._workers_gone()  # none was started yet
        self._stopping.begin(now, lost=lost)
        return [StopWorkers(signum)]

    def _was_stopped(self, event: events.WorkerExited) -> bool:
        """Return whether a worker ended because this agent stops them. If the round is lost, a
        death by SIGKILL before the agent has sent one was seen late: it may be why it is lost.
        """
        stopping = self._stopping
        is_own = event.signal == SIGKILL and stopping.is_lost and not stopping.has_killed
        return self.phase is not Phase.RUNNING and not is_own

    def stop_again(self, now: float) -> list[Effect]:
        """End the grace period: the user has asked a second time."""
        if self.phase is not Phase.STOPPING:
            return self.stop(now)
        self._stopping.hurry(now)
        return []

    def signal(self, signum: int) -> list[Effect]:
        """Pass a signal on to the workers. The head lets all of them get it before the same step.
        If the user wants no notices, it is passed on at once.
        """
        if self.phase is not Phase.RUNNING:
            return []
        if not self.job.timing.notice:
            return [SignalWorkers(signum)]
        self.passed = (signum, self.passed[1] + 1)
        return []

    def _lease_over(self, now: float) -> list[Effect]:
        """Note that the fork server holds the workers until the head renews their lease or ends the
        round. If they are being stopped already, their grace period ends.
        """
        self._suspicion.forget()
        if self.phase is Phase.STOPPING:
            self._stopping.hurry(now)
        return []

    def _store_ended(self, event: events.StoreEnded, now: float) -> list[Effect]:
        """Stop the workers: ranks that still have to meet at the store would wait for ever."""
        if self.phase not in (Phase.RUNNING, Phase.DONE):
            return []
        assert self.part is not None, "an agent in these phases has a part in a round"
        if not self.part.hosts_store or event.port != self.part.store_port:
            return []  # it was the store of an earlier round
        self.exits.add_store(event, now)
        return self.stop(now, lost=True)

    def _workers_gone(self) -> list[Effect]:
        if self.phase not in (Phase.RUNNING, Phase.STOPPING, Phase.STUCK):
            return []
        self._stopping.end()
        self._waits_for_gpus = False
        if self.verdict is not None:
            self._enter(Phase.ENDED)
            return []
        if self.phase is Phase.RUNNING:
            self._enter(Phase.DONE)
            return []
        return self.prepare()

    def _fork_server_lost(self, now: float) -> list[Effect]:
        if self.phase is Phase.DONE:
            return []  # all workers are done, and a store for the next round is opened after this
        if self.phase in (Phase.PREPARING, Phase.IDLE):
            self._enter(Phase.PREPARING)
            return self.readiness.open_store()
        assert self.part is not None, "an agent in these phases has a part in a round"
        stopped = self.phase is not Phase.RUNNING
        if self.exits.lose(self.part, now, stopped=stopped) and not stopped:
            self._enter(Phase.STOPPING)
        self.spending.ended(self.exits.mean_time(now))
        return self._workers_gone()

    # Time

    def due(self, now: float) -> list[Effect]:
        """Carry out what is due: kill processes, or give up those that survive SIGKILL."""
        effects = self._stopping.due(now)
        if reason := self._stopping.given_up(now):
            self.readiness.health_checked(reason)
            self._enter(Phase.DONE if self.phase is Phase.RUNNING else Phase.STUCK)
            if self.verdict is not None:
                self._enter(Phase.ENDED)
                effects.append(Record(WorkersSurvive(self.place.host, reason)))
        return effects


class Readiness:
    """The readiness of a node for workers: a socket for a store is open, its health was checked
    since the last round and, if it has a stager that serves others, that one listens.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.store_port = 0
        self.unfit = ""  # why no workers may run here; never reset, since they would fail again
        self._listening = False  # the socket at `store_port` is open
        self._health_checked = False
        self.stager = events.StagerFound()

    @property
    def is_complete(self) -> bool:
        waits = self.job.stages_together and not (self.stager.port or self.stager.refused)
        return self._listening and self._health_checked and not waits

    def begin(self) -> list[Effect]:
        self._health_checked = not self.job.health
        return self.open_store() + ([] if self._health_checked else [CheckHealth()])

    def open_store(self) -> list[Effect]:
        self._listening = False
        return [OpenStore()]

    def listening(self, port: int) -> None:
        self.store_port = port
        self._listening = True

    def health_checked(self, unfit: str) -> None:
        """Note why no workers may run here, or "" if they may."""
        self.unfit = self.unfit or unfit
        self._health_checked = True
