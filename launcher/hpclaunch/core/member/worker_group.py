"""An agent's own workers: their phases in a round, and what the agent does to them.

A fork server that is killed takes its workers and the store's socket along: whoever had any is
PREPARING again.

A failed worker ends the round at once, without asking: by the law of the house the round is lost,
and every millisecond that the other workers of this node keep waiting in a collective is wasted.
"""

from __future__ import annotations

from ..protocol.effects import (
    CheckHealth,
    Effect,
    OpenStore,
    PrepareGpus,
    Say,
    SignalWorkers,
    StartWorkers,
    StopWorkers,
)
from ..protocol.events import (
    Event,
    ForkServerReplaced,
    GpusReady,
    HealthFound,
    LeaseOver,
    StoreEnded,
    StoreListening,
    WorkerExited,
    WorkersGone,
)
from ..protocol.messages import Order
from ..protocol.model import EXIT_LOST, Assignment, Goal, Job, Phase, Place, Trouble, Verdict
from .exits import Exits
from .stopping import Stopping

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
    """Once the phase is ENDED the agent may leave."""

    def __init__(self, job: Job, place: Place) -> None:
        self.job = job
        self.place = place
        self.phase = Phase.PREPARING
        self.round = -1
        self.verdict: Verdict | None = None  # how the job ended
        self.trouble: Trouble | None = None
        self.part: Assignment | None = None  # in this round, or the last one
        self.exits = Exits()
        self.fenced = False  # this round's workers, since the head was not heard
        self.readiness = Readiness(job)
        self._waits_for_gpus = False
        self._stopping = Stopping(job)

    def next_deadline(self) -> float:
        return self._stopping.next_deadline()

    def _enter(self, phase: Phase) -> None:
        if phase is not self.phase:
            assert phase in PHASES[self.phase], f"{self.phase} is not followed by {phase}"
            self.phase = phase

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case StoreListening(port=port) if self.phase is Phase.PREPARING:
                self.readiness.listening(port)
                self._prepared()
            case HealthFound(unfit=unfit):
                self.readiness.looked(unfit)
                self._prepared()
                return self.stop(now, lost=True) if unfit else []
            case GpusReady(round=number) if self._waits_for_gpus and number == self.round:
                assert self.part is not None, "an order to run came with it"
                self._waits_for_gpus = False
                return [StartWorkers(self.part)]
            case WorkerExited():
                self.exits.add(event, now, stopped=self.phase is not Phase.RUNNING)
                return self.stop(now, lost=True) if event.code else []
            case StoreEnded():
                return self._store_ended(event, now)
            case WorkersGone():
                return self._gone()
            case LeaseOver():
                return self._lease_over(now)
            case ForkServerReplaced():
                return self._forkserver_replaced(now)
        return []

    # What the head wants

    def obey(self, order: Order, now: float, *, willing: bool) -> list[Effect]:
        if self.phase is Phase.RUNNING and order.round > self.round:
            return self.stop(now, lost=True)  # the others are further already
        match order.goal:
            case Goal.RUN:
                return self._run(order.assignment, now) if willing else []
            case Goal.STOP:
                return self._leave_round(order.round, now, lost=order.lost)
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
        self.fenced = False
        if part.hosts_store and part.store_port != self.readiness.store_port:
            return self._forkserver_replaced(now)  # which the head has not heard yet
        self._waits_for_gpus = bool(part.shares.of)
        return [PrepareGpus(part) if self._waits_for_gpus else StartWorkers(part)]

    def _leave_round(self, number: int, now: float, *, lost: bool) -> list[Effect]:
        if self.phase is Phase.IDLE and self.round < number:
            # The order to run it never came, or came too late: it is over for us as well.
            self.round = number
            self.exits = Exits()
            return []
        if self.round != number:
            return []
        if self.phase is Phase.DONE:
            return self.prepare()
        return self.stop(now, lost=lost)

    def leave_world(self, now: float) -> list[Effect]:
        """Another head leads one without us, and we are to be in its next one."""
        return self.prepare() if self.phase is Phase.DONE else self.stop(now, lost=True)

    def end(self, verdict: Verdict, now: float) -> list[Effect]:
        """The job is over for this agent; it leaves once its workers have."""
        self.verdict = self.verdict or verdict
        if self.phase in (Phase.RUNNING, Phase.STOPPING):
            return self.stop(now)
        self._enter(Phase.ENDED)
        return []

    # Before a round

    def prepare(self) -> list[Effect]:
        self._enter(Phase.PREPARING)
        return self.readiness.begin()

    def _prepared(self) -> None:
        if self.phase is Phase.PREPARING and self.readiness.full:
            self._enter(Phase.IDLE)

    # The end of a round

    def stop(self, now: float, *, lost: bool = False) -> list[Effect]:
        if self.phase is not Phase.RUNNING:
            return []
        self._enter(Phase.STOPPING)
        if self._waits_for_gpus:
            return self._gone()
        self._stopping.begin(now, lost=lost)
        return [StopWorkers()]

    def stop_again(self, now: float) -> list[Effect]:
        """Asked for a second time: no more grace."""
        if self.phase is not Phase.STOPPING:
            return self.stop(now)
        self._stopping.hurry(now)
        return []

    def signal(self, signum: int) -> list[Effect]:
        return [SignalWorkers(signum)] if self.phase is Phase.RUNNING else []

    def _lease_over(self, now: float) -> list[Effect]:
        if self.phase is not Phase.RUNNING:
            return []
        self.fenced = True
        effects = self.stop(now, lost=True)
        self._stopping.hurry(now)
        return effects

    def _store_ended(self, event: StoreEnded, now: float) -> list[Effect]:
        """Ranks that would still meet there, here or on another node, would wait for ever."""
        if self.phase not in (Phase.RUNNING, Phase.DONE):
            return []
        assert self.part is not None, "there are workers in a round only"
        if not self.part.hosts_store or event.port != self.part.store_port:
            return []  # that of an earlier round
        self.exits.add_store(event, now)
        return self.stop(now, lost=True)

    def _gone(self) -> list[Effect]:
        if self.phase not in (Phase.RUNNING, Phase.STOPPING, Phase.STUCK):
            return []
        self._stopping.over()
        self._waits_for_gpus = False
        if self.verdict is not None:
            self._enter(Phase.ENDED)
            return []
        if self.phase is Phase.RUNNING:
            self._enter(Phase.DONE)
            return []
        return self.prepare()

    def _forkserver_replaced(self, now: float) -> list[Effect]:
        if self.phase is Phase.DONE:
            return []  # its workers need nothing more, and the next round begins with a store
        if self.phase in (Phase.PREPARING, Phase.IDLE):
            self._enter(Phase.PREPARING)
            return self.readiness.open_store()
        assert self.part is not None, "there are workers in a round only"
        stopped = self.phase is not Phase.RUNNING
        if self.exits.lose(self.part, now, stopped=stopped) and not stopped:
            self._enter(Phase.STOPPING)
        return self._gone()

    # Time

    def due(self, now: float) -> list[Effect]:
        effects = self._stopping.due(now)
        if self._stopping.given_up(now):
            waited = f"{self.job.timing.unkillable:.0f} s"
            reason = (
                f"workers on {self.place.host} are still there {waited} after SIGKILL "
                "(a hung file system or driver?)"
            )
            self.trouble = self.trouble or Trouble(EXIT_LOST, reason)
            self._enter(Phase.STUCK)
            if self.verdict is not None:
                self._enter(Phase.ENDED)
                effects.append(Say(reason))
        return effects


class Readiness:
    """Whether a node is ready for workers: a store could begin there, and nothing is broken."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.store_port = 0
        self.unfit = ""  # stays so: its workers would fail again, or hang
        self._listening = False  # a store could begin at that port
        self._looked = False  # at this node's health, since the last round

    @property
    def full(self) -> bool:
        return self._listening and self._looked

    def begin(self) -> list[Effect]:
        self._looked = not self.job.health
        return self.open_store() + ([] if self._looked else [CheckHealth()])

    def open_store(self) -> list[Effect]:
        self._listening = False
        return [OpenStore()]

    def listening(self, port: int) -> None:
        self.store_port = port
        self._listening = True

    def looked(self, unfit: str) -> None:
        self.unfit = self.unfit or unfit
        self._looked = True
