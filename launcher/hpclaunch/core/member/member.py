"""The member: the part of an agent that obeys the head's orders and reports its own state.

What happens to its workers is in worker_group.py. Which head it follows, and whom it asks to lead
when that head is lost, is in consensus/follower.py.
"""

from __future__ import annotations

import math
import signal

from ..consensus.follower import Follower, Standing
from ..consensus.rotation import Rotation
from ..ending.table import verdict
from ..protocol import events
from ..protocol.configuration import NOBODY
from ..protocol.effects import (
    AskWorkers,
    Effect,
    KeepWorkers,
    LookAt,
    Probe,
    Send,
    StopWorkers,
    TakePlace,
)
from ..protocol.messages import Hint, Order, PlaceGiven, Report
from ..protocol.model import FORWARDED, Goal, Job, Look, Origin, Phase, Seen, Verdict, with_place
from ..protocol.values import replace, value
from ..protocol.wording import signal_name
from .waiting_for_head import Waiting
from .worker_group import WorkerGroup


@value(frozen=True)
class AgentStart:
    """One start of an agent, as it is known before any message is exchanged."""

    job: Job
    index: int
    nproc: int
    address: str
    incarnation: str
    gpus: tuple[str, ...] = ()
    port: int = 0
    networks: tuple[str, ...] = ()
    task: int = 0  # Slurm's number of this agent's task
    claim: str = ""  # what only one start of this agent can hold; "" if that is not known
    anew: bool = False  # it is the first agent of the job, and an earlier start of it was killed
    has_place: bool = True  # False: `index` is a stand-in until the first head gives it a place


class Member:
    """An agent's own side: `handle(event, now)` returns effects. Once the phase is ENDED, the agent
    may leave, and `verdict` says how the job ended.
    """

    def __init__(self, own: AgentStart) -> None:
        self.own = own
        self.job, self.index = job, index = own.job, own.index
        self.has_place, self.address, self.port = own.has_place, own.address, own.port
        self.place = job.places[index]
        rotation = Rotation(job.places)
        self.follower = Follower(rotation, job.timing, index, elects=job.elects, anew=own.anew)
        self.work = WorkerGroup(job, self.place)
        self._looking = Looking()
        self._waiting = Waiting(job, self.place, knows_head=self.follower.knows_first_head)
        self._signum = 0  # the signal that asked this agent to end the job; 0 for none
        self._warned = 0  # a signal after which the job may end later; 0 for none
        self._heed_at = math.inf  # when to end the job because of `_warned`
        self._stop: Order | None = None  # a postponed order to stop
        self._stop_at = math.inf  # when to obey it
        self._serial = 0
        self._last_news: tuple[object, ...] = ()  # `news` of the last report
        self._report_at = 0.0  # when to report even without news

    @property
    def phase(self) -> Phase:
        return self.work.phase

    @property
    def round(self) -> int:
        return self.work.round

    @property
    def verdict(self) -> Verdict | None:
        return self.work.verdict

    def next_deadline(self) -> float:
        work = self.work
        if work.phase is Phase.ENDED:
            return work.next_deadline()
        mine = (self._report_at, self._waiting.next_deadline(), self._heed_at, self._stop_at)
        following = self.follower.next_deadline() if work.verdict is None else math.inf
        return min(work.next_deadline(), following, *mine)

    def handle(self, event: events.Event, now: float) -> list[Effect]:
        if self.phase is Phase.ENDED:
            return []
        effects: list[Effect] = []
        match event:
            case events.Started():
                if not self.follower.leads:
                    self._waiting.begin(now)
                if not self.follower.knows_first_head:
                    effects += self.follower.look_for_head(now)
                effects += self.work.prepare()
            case events.Received(message=Order() as order) if (
                order.incarnation == self.own.incarnation
            ):
                effects += self._hear(event, order, now)
            case events.Received(message=PlaceGiven() as given) if (
                given.incarnation == self.own.incarnation
            ):
                effects += self._take_place(given.index)
            case events.PlaceTaken(port=port):
                self.port = port
                self._report_at = now
            case events.Received(sender=sender, message=Hint() as hint) if self.verdict is None:
                effects += self.follower.hear_hint(sender, hint, now)
            case events.HeadReached(index=index, address=address, own=own):
                self._report_at = now
                self.address = own or self.address
                if index == self.follower.head:
                    self.follower.link.reopen(address)
            case events.HeadClosed(index=index) if index == self.follower.head:
                self.follower.link.close(now)
                effects.append(Probe(index))
            case events.AgentGone(index=index) if self.verdict is None:
                effects += self.follower.agent_died(index, now)
                effects += self.work.stop(now, lost=True) if self.follower.link.is_dead else []
            case events.Diagnosed():
                effects += self._waiting.explain(event, now)
            case events.CheckpointSeen(seen=seen):
                self._looking.saw(seen)
            case events.WorkersSeen() | events.WorkersAnswered():
                effects += self.work.handle(event, now)
                if self.follower.leads:  # it sends itself no report at every beat
                    self._report_at = now
            case events.Signalled(signum=signum):
                effects += self._handle_signal(signum, now)
            case events.TroubleFound(trouble=trouble) if self.work.trouble is None:
                self.work.trouble = trouble
                self._hurry(now)
                effects += self.work.stop(now)
            case _:
                effects += self.work.handle(event, now)
        effects += self._handle_deadlines(now, ticked=isinstance(event, events.Tick))
        return effects + self._report(now)

    def _hear(self, event: events.Received, order: Order, now: float) -> list[Effect]:
        follower, old_tenure = self.follower, self.follower.tenure
        if self.round >= 0 and self.verdict is None and follower.is_started_again(order):
            why = f"the head on {follower.host} was started again, and begins the job anew"
            return self.work.end(self._without_head(why), now)
        if not follower.hear(event.sender, order, event.address, now):
            return []
        self._waiting.end()
        if order.later:
            self._heed_at = math.inf
        effects = follower.head_found()
        effects += self.work.head_changed(now) if follower.tenure != old_tenure else []
        effects += self._looking.obey(order.look)
        willing = not (self._signum or self.work.trouble)
        asked: list[Effect] = []
        if self._may_be_signalled(order):
            self._postpone_stop(order, now)
        else:
            asked = self.work.obey(order, now, willing=willing)
        until = None if follower.leads else follower.link.extend_lease(order)
        keep: list[Effect] = [] if until is None else [KeepWorkers(until)]
        # Stop workers first: a new lease would wake workers that are held, and the head may have
        # begun another round without them.
        stops = any(isinstance(effect, StopWorkers) for effect in asked)
        self._hasten_report(order, asked, now)
        return effects + (asked + keep if stops else keep + asked)

    def _hasten_report(self, order: Order, asked: list[Effect], now: float) -> None:
        """Report before the next quiet beat if the order has queries. If one of them is new and
        urgent, report at once: the head's next order then shows how far its clock is ahead, which a
        sample needs. For one that is not urgent, report at the next beat: its answer is not `news`.
        """
        new = [effect.query for effect in asked if isinstance(effect, AskWorkers)]
        if any(query.kind.is_urgent for query in new):
            self._report_at = min(self._report_at, now)
        elif any(not query.kind.is_urgent for query in order.queries):
            self._report_at = min(self._report_at, now + self.job.timing.beat)

    @property
    def _beat(self) -> float:
        timing, standing = self.job.timing, self.follower.standing
        is_quiet = self.phase is Phase.RUNNING and standing is Standing.FOLLOWING
        return timing.quiet_beat if is_quiet else timing.beat

    def _may_be_signalled(self, order: Order) -> bool:
        """Return whether the signal that ends the job may still reach this agent, and its workers,
        by itself: the workers must not get it twice.
        """
        stops = order.goal is Goal.STOP and order.signum != signal.SIGTERM
        return stops and not self._signum and self.phase is Phase.RUNNING

    def _postpone_stop(self, order: Order, now: float) -> None:
        if self._stop is None:
            self._stop, self._stop_at = order, now + self.job.timing.wave

    def _take_place(self, index: int) -> list[Effect]:
        if self.has_place:
            return []  # the message was repeated
        self.has_place = True
        self.job = replace(self.job, places=with_place(self.job.places, index, stand_in=self.index))
        self.index, self.place = index, self.job.places[index]
        self.follower.take_place(Rotation(self.job.places), index)
        return [TakePlace(index)]

    def _handle_signal(self, signum: int, now: float) -> list[Effect]:
        if signum in FORWARDED:
            return self.work.signal(signum)
        if self._may_come_later(signum):
            self._warned, self._heed_at = signum, now + self.job.timing.warned
            return []
        self._heed_at = math.inf
        again = bool(self._signum)
        self._signum = self._signum or signum
        self._hurry(now)
        return self.work.stop_again(now) if again else self.work.stop(now, signum=signum)

    def _may_come_later(self, signum: int) -> bool:
        """Return whether a signal may mean a later end: Slurm sends SIGTERM some time before it
        ends a preempted job, also to agents without workers. The head asks Slurm, for all agents.
        """
        is_first = not (self._warned or self._signum) and self.verdict is None
        has_head = self.follower.leads or self.follower.link.was_heard
        return self.job.may_end and signum == signal.SIGTERM and is_first and has_head

    def _hurry(self, now: float) -> None:
        self._waiting.hurry(now)
        self.follower.hurry(now)

    def _handle_deadlines(self, now: float, *, ticked: bool) -> list[Effect]:
        effects = self.work.due(now)
        if self._stop is not None and now >= self._stop_at:
            effects += self.work.obey(self._stop, now, willing=False)
            self._stop, self._stop_at = None, math.inf
        if ticked and now >= self._heed_at:
            effects += self._handle_signal(self._warned, now)
        if self.verdict is not None or not ticked:
            return effects
        effects += self.follower.tick(now)
        why_given_up = self.follower.why_given_up(now)
        ended = self._without_head(why_given_up) if why_given_up else None
        if self._waiting.given_up(now):
            ended = self._waiting.verdict(now, self._signum, self.work.trouble)
        if ended is not None:
            return effects + self.work.end(ended, now)
        if notice := self._waiting.notice(now):
            effects += notice
            # The first head may have died before we started, so that another one leads by now.
            effects += self.follower.look_for_head(now)
        return effects

    def _without_head(self, why: str) -> Verdict:
        if not self._signum:
            return verdict(Origin.HEAD_LOST, why)
        reason = f"ended by {signal_name(self._signum)}; {why}"
        return verdict(Origin.SIGNAL, reason, signum=self._signum)

    def _report(self, now: float) -> list[Effect]:
        """Report at once if there is news, and at every beat."""
        follower, work = self.follower, self.work
        report = Report(
            host=self.place.host,
            incarnation=self.own.incarnation,
            serial=self._serial + 1,
            nproc=self.own.nproc,
            address=self.address,
            head_address=follower.link.address,
            store_port=work.readiness.store_port,
            round=work.round,
            phase=work.phase,
            exits=work.exits.for_report(now),
            stop_signal=self._signum,
            trouble=work.trouble,
            gpus=self.own.gpus,
            unfit=work.readiness.unfit,
            heard=follower.link.newest,
            group=work.part.group_rank if work.part is not None else -1,
            term=follower.term,
            seeking=follower.seeking,
            version=-1 if follower.configuration is None else follower.configuration.version,
            configuration=follower.configuration if follower.seeking != NOBODY else None,
            port=self.port,
            seen=self._looking.seen,
            networks=self.own.networks,
            progress=work.progress,
            answers=work.answers,
            notice=work.notice,
            warned=self._warned,
            passed=work.passed,
            spent=work.spending.report(now if follower.seeking != NOBODY else None),
            task=self.own.task,
            start=follower.start,
            claim=self.own.claim,
            stager=work.readiness.stager.port,
            stage_refused=work.readiness.stager.refused,
        )
        if report.news == self._last_news and now < self._report_at:
            return []
        alone = follower.report_to == (self.index,)
        self._report_at = math.inf if alone else now + self._beat
        self._serial += 1
        self._last_news = report.news
        follower.link.report_sent(report.serial, now)
        return [Send(agent, report) for agent in follower.report_to]


class Looking:
    """The look at the checkpoint that the head has chosen. If another node has written it, it may
    appear late on a parallel file system. If each node has a directory of its own, it may not be
    there at all.
    """

    def __init__(self) -> None:
        self.seen: Seen | None = None  # the answer to `_look`; None: there is none yet
        self._look: Look | None = None  # the checkpoint that the last order named

    def obey(self, look: Look | None) -> list[Effect]:
        """Look at the checkpoint that an order names; None: at nothing."""
        if look == self._look:
            return []
        self._look, self.seen = look, None
        return [LookAt(look)]

    def saw(self, seen: Seen) -> None:
        if self._look is not None and self._look.is_answered(seen):
            self.seen = seen
