"""The whole core of one agent: its member, and also a head while this agent leads.

Member and head exchange the same messages whether or not they share a process. A message that this
agent sends to itself is delivered here, at once and in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .consensus.awake_clock import LATE, AwakeClock
from .consensus.election import Candidate
from .ending.table import verdict
from .head.head import Head
from .head.seat_use import seat_use
from .member.member import AgentStart, Member
from .protocol import events
from .protocol.effects import Effect, Exit, KeepWorkers, Probe, Record, Send
from .protocol.facts import HeadDeposed, HeadLeaves, SeatUse
from .protocol.gpu_use import GpuUse
from .protocol.messages import Hint, Order, Report
from .protocol.model import Job, Phase, RankVitals, Request, Sample, Trouble, Verdict
from .protocol.stages import Stage
from .protocol.values import replace
from .stragglers.clock_offset import ClockOffset

if TYPE_CHECKING:
    from .member.moments import WorkersMoment
    from .protocol.job_snapshot import JobSnapshot


class Control:
    """The core of one agent: `handle(event, now)` returns effects. The last effect is `Exit`.

    The caller delivers `Started` first, then a `Tick` whenever `next_deadline()` has passed. It
    carries out the effects in the order in which they are returned.
    """

    def __init__(self, own: AgentStart) -> None:
        self.member = Member(own)
        self.head = Head(own.job) if self.member.follower.leads else None
        self._candidate: Candidate[Report] = Candidate(self.member.follower)
        self._clock = AwakeClock()
        self._ahead = ClockOffset()  # in real time, as the workers' times are
        self._last_probe = 0  # the number of the last probe
        self._probes: dict[int, int] = {}  # the number of the last probe of each agent
        self._handled_at: float | None = None  # when the last event was handled, on `_clock`
        self._left: Verdict | None = None  # why this agent leaves the job to the others
        self.exited = False

    @property
    def job(self) -> Job:
        return self.member.job

    @property
    def index(self) -> int:
        return self.member.index

    @property
    def leads(self) -> bool:
        return self.head is not None

    @property
    def head_host(self) -> str:
        """The host of the agent that leads, as far as this one knows; "" if it knows of none."""
        follower = self.member.follower
        return follower.host if follower.has_head else ""

    def snapshot(self, now: float) -> JobSnapshot | None:
        """Return the job at this moment; None if another agent leads."""
        if self.head is None:
            return None
        return self.head.snapshot(self._clock.awake(now))

    def seat_use(self, now: float) -> SeatUse | None:
        """Return how the seats of the job are used at this moment; None if this agent does not
        lead, or is not confirmed yet.
        """
        if self.head is None or not self.head.is_confirmed:
            return None
        return seat_use(self.head.state, self.head.stage, self._clock.awake(now))

    def workers_moment(
        self, now: float, vitals: Sequence[RankVitals] = (), gpus: Sequence[GpuUse] = ()
    ) -> WorkersMoment | None:
        """Return the state of this agent's workers in its last round, with the `vitals` and `gpus`
        that were just read; None before its first round.
        """
        return self.member.work.moment(self._clock.awake(now), vitals, gpus)

    def refusal(self, request: Request) -> str:
        """Return why what the user asks for cannot be done now; "" if it can."""
        if self.head is None:
            host = self.head_host
            return f"the job is led from {host}" if host else "no head is known: ask again later"
        return self.head.refusal(request)

    def next_deadline(self) -> float:
        return self._clock.real(self._next_deadline())

    def _next_deadline(self) -> float:
        mine = self.member.next_deadline()
        if self.head is None:
            return mine
        deadlines = [mine, self.head.next_deadline()]
        if not self.member.follower.is_deposed:
            deadlines.append(self.head.deposed_at)
        return min(deadlines)

    def handle(self, event: events.Event, now: float) -> list[Effect]:
        if self.exited:
            return []
        self._wake(now)
        real, now = now, self._clock.awake(now)
        self._handled_at = now
        if isinstance(event, events.Received) and isinstance(event.message, Order):
            order = event.message
            self._ahead.hear(event.sender, order.heard, order.clock, real)
        outside: list[Effect] = []
        self._deliver(self._update_standing(now), outside, now)
        self._deliver(self._route(event, now), outside, now)
        if self.head is None and self.member.verdict is None:
            self._deliver(self._lead_if_elected(now), outside, now)
        self._deliver(self._update_standing(now), outside, now)
        if self._left is not None or self._is_over():
            self.exited = True
            ended = self._left or self.member.verdict
            assert ended is not None, "an agent ends with a verdict"
            outside.append(Exit(ended, alone=self._left is not None))
        return [self._in_real_time(effect, real) for effect in outside]

    def _wake(self, now: float) -> None:
        """Account for time in which this process did not run: `_clock` stops, leases do not."""
        last = self._handled_at
        if last is None or self._clock.awake(now) < last + LATE:
            return  # with many agents, the deadline is costly to compute
        due = self._next_deadline()
        missed = self._clock.miss(now, due=due, since=last if self.job.alone else due)
        if missed and self.head is not None and self.head.state.current is not None:
            self.head.state.current.miss(missed)
        if missed and not self.job.alone:
            self.member.follower.link.miss(missed)
            if self.head is not None:
                self.head.miss(missed, self._clock.awake(now))

    def _in_real_time(self, effect: Effect, now: float) -> Effect:
        match effect:
            case KeepWorkers(until=until):
                return replace(effect, until=self._clock.real(until))
            case Send(message=Order() as order):
                return replace(effect, message=replace(order, clock=round(now, 6)))
            case Send(to=to, message=Report() as report):
                self._ahead.report_sent(report.serial, now)
                return replace(effect, message=self._on_clock_of(to, report, now))
        return effect

    def _on_clock_of(self, agent: int, report: Report, now: float) -> Report:
        """Add the difference of the clocks to a sample; leave the sample out if it is not known."""
        if report.answer(Sample) is None:
            return report
        ahead = self._ahead.of(agent, now)
        answers = []
        for answer in report.answers:
            if isinstance(answer.body, Sample):
                if ahead is None:
                    continue
                seconds, error = round(ahead.seconds, 6), round(ahead.error, 6)
                answer = replace(answer, body=replace(answer.body, ahead=seconds, error=error))
            answers.append(answer)
        return replace(report, answers=tuple(answers))

    def _deliver(self, effects: list[Effect], outside: list[Effect], now: float) -> None:
        """Deliver messages to this agent itself, and the effects that follow from them, until none
        are left. All other effects are appended to `outside`.
        """
        if not effects:
            return
        todo = deque(effects)
        while todo:
            effect = todo.popleft()
            if isinstance(effect, Send) and effect.to == self.index:
                todo += self._route(events.Received(self.index, effect.message), now)
            elif isinstance(effect, Probe):
                self._last_probe += 1
                self._probes[effect.agent] = self._last_probe
                outside.append(replace(effect, number=self._last_probe))
            else:
                outside.append(effect)

    def _is_over(self) -> bool:
        member_ended = self.member.phase is Phase.ENDED
        return member_ended and (self.head is None or self.head.stage is Stage.ENDED)

    def _route(self, event: events.Event, now: float) -> list[Effect]:
        if isinstance(event, events.AgentGone) and event.number != self._probes.get(event.index):
            return []  # the agent was probed again since: another may have been started there
        if self.head is None:
            if isinstance(event, events.Received) and isinstance(event.message, Report):
                return self._hear_report(event.sender, event.message, now)
            return self.member.handle(event, now)
        match event:
            case (
                events.CheckpointChosen()
                | events.Diagnosed()
                | events.EndFound()
                | events.Received(message=Report())
            ):
                return self.head.handle(event, now)
            case (
                events.LookedAt()
                | events.Requested()
                | events.CheckpointDrained()
                | events.StageFlushed()
            ):
                return self.head.handle(event, now)
            case events.SearchFailed(number=number) if not self.head.needs_search(number):
                return self.head.handle(event, now)
            case events.SearchFailed(trouble=trouble):
                return self._search_failed(trouble, now)
            case events.Started() | events.Tick() | events.PeerClosed() | events.AgentGone():
                return self.head.handle(event, now) + self.member.handle(event, now)
        effects = self.member.handle(event, now)
        follower = self.member.follower
        if not follower.leads:  # another agent has a quorum and leads
            hint = Hint(follower.term, led=True)  # this agent may leave before another one asks
            others = (p.index for p in self.job.places if p.index != self.index)
            effects += [Send(agent, hint) for agent in others]
            self.head = None
            here, there = self.job.places[self.index].host, follower.host
            effects.append(Record(HeadDeposed(here, there)))
        return effects

    def _hear_report(self, sender: int, report: Report, now: float) -> list[Effect]:
        """Handle a report while this agent does not lead."""
        if sender >= len(self.job.places):
            return []  # it has no place, and only the first head knows which ones are free
        return self._candidate.hear(sender, report, now)

    def _search_failed(self, trouble: Trouble, now: float) -> list[Effect]:
        """End the job, or leave it to another head: without a search, no round can begin."""
        assert self.head is not None, "only a head searches"
        if not self.head.state.can_be_replaced:
            return self._route(events.TroubleFound(trouble), now)
        # It may be this node's trouble. So this agent leaves as if it had died, and another leads.
        here = self.job.places[self.index].host
        self._left = verdict(trouble.origin, trouble.reason)
        return [Record(HeadLeaves(here, trouble.reason))]

    # Who leads

    def _update_standing(self, now: float) -> list[Effect]:
        """Depose a head that has had no quorum for too long, or reinstate it.

        A deposed head keeps its state until it hears a head that has a quorum.
        """
        follower = self.member.follower
        if self.head is None:
            return []
        if now >= self.head.deposed_at:
            follower.depose()
            return []
        return follower.reinstate() if follower.is_deposed else []

    def _lead_if_elected(self, now: float) -> list[Effect]:
        election = self._candidate.elected(now)
        if election is None:
            return []
        self.head = Head(
            self.job, me=self.index, term=election.term, configuration=election.configuration
        )
        heard = min(now, self.member.follower.link.silent_at(0.0))
        return self.head.take_over(election, now, heard=heard)
