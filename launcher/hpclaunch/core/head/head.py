"""The head: it takes reports in, runs the job's current stage, and sends orders out.

Every transition is listed in `NEXT` (core/protocol/stages.py); the stages are in `stages/`. The
head keeps the newest report of every agent and decides from its contents, never from the mere
arrival of a message. So a message that arrives twice or late does no harm.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..consensus.election import Election
from ..protocol import events
from ..protocol.configuration import Configuration
from ..protocol.effects import Effect, Send
from ..protocol.messages import Report
from ..protocol.model import Job, Request
from ..protocol.stages import NEXT, Stage
from .admission import Admission
from .head_state import HeadState
from .job_snapshots import snapshot_of
from .loss_detection import LossDetector
from .roster import Peer
from .seat_use import SeatUses
from .stages.choosing import Choosing
from .stages.rendezvous import RendezvousStage
from .stages.running import Running, Stopping
from .stages.stage import Ended, Ending, JobStage

if TYPE_CHECKING:
    from ..protocol.job_snapshot import JobSnapshot

BEAT_SLACK = 0.1  # the share of a beat by which a beat may be late
STAGES: dict[Stage, type[JobStage]] = {
    kind.kind: kind for kind in (RendezvousStage, Choosing, Running, Stopping, Ending, Ended)
}


class Head:
    """The core of the agent that leads: `handle(event, now)` returns effects. The job is over once
    `stage` is ENDED.
    """

    def __init__(
        self,
        job: Job,
        *,
        me: int = 0,
        term: int = 0,
        configuration: Configuration | None = None,
    ) -> None:
        self.timing, self.me = job.timing, me
        self.state = state = HeadState(job, me, term, configuration)
        self.losses = LossDetector(state)
        self._stage: JobStage = RendezvousStage(state)
        self._admission = Admission(state)
        self._seat_uses = SeatUses()
        self._beat_at = math.inf

    @property
    def stage(self) -> Stage:
        return self._stage.kind

    @property
    def is_confirmed(self) -> bool:
        """Whether this head certainly leads: see `Takeover.is_confirmed`."""
        return self.state.takeover is None or self.state.takeover.is_confirmed

    @property
    def deposed_at(self) -> float:
        """When this head must give way to another one, unless a quorum renews its lease before."""
        return max(self.state.lease.until, self.state.tenure_since + self.timing.loss)

    def needs_search(self, number: int) -> bool:
        return self._stage.needs_search(number)

    def next_deadline(self) -> float:
        if self.stage is Stage.ENDED:
            return math.inf
        # Most often a report arrives right after the time of a beat, and wakes this agent anyway.
        beat_at = self._beat_at + BEAT_SLACK * self.timing.beat
        stage_at = self._stage.next_deadline()
        return min(beat_at, self.losses.check_at, self.state.end.allocation.ask_at, stage_at)

    def _beat(self, now: float) -> float:
        is_quiet = self.stage is Stage.RUNNING and not self.state.viewers.query(now)
        return self.timing.quiet_beat if is_quiet else self.timing.beat

    def miss(self, seconds: float, now: float) -> None:
        """Note that this process did not run for the last `seconds`."""
        self.state.lease.miss(seconds, now)
        for peer in self.state.roster:
            peer.presence.miss(seconds, now)

    def take_over(self, election: Election[Report], now: float, *, heard: float) -> list[Effect]:
        """Begin to lead in place of a lost head, after an election that this agent has won.
        `heard`: when the lost head was last heard.
        """
        self.state.take_over(election, now, heard)
        for peer in self.state.roster:
            self.losses.expect(peer)
        self._beat_at = now + self._beat(now)
        return self._begin(now) + self._stage.order_all(now)

    def _begin(self, now: float) -> list[Effect]:
        self.state.tenure_since = now
        self.state.end.allocation.begin_to_ask(now)
        return self._stage.enter(now) + self.state.lease.renew(now)

    def handle(self, event: events.Event, now: float) -> list[Effect]:
        if self.stage is Stage.ENDED:
            return []
        effects: list[Effect] = []
        state = self.state
        reporter = None  # the agent whose new report is to be answered
        is_fresh = isinstance(event, events.Tick)  # also true for an agent's new report
        match event:
            case events.Started():
                state.rendezvous.begin(now)
                effects += self._begin(now)
                self._beat_at = now + self._beat(now) if state.roster.others else math.inf
            case events.Received(sender=sender, message=Report() as report):
                strange = self._admission.answer(sender, report, now)
                effects += strange or []
                follows = state.lease.is_of_ours(report.term)
                if strange is None and state.roster[sender].accept(report, now, follows=follows):
                    is_fresh = True
                    # The head's own agent needs an answer only to learn what its SIGTERM means.
                    reporter = sender if sender != self.me or report.warned else None
                    effects += self._note_report(state.roster[sender], report, now)
            case events.PeerClosed(index=index) if index < len(state.roster):
                effects += self.losses.closed(index, now)
            case events.AgentGone(index=index):
                effects += self.losses.proven_dead(index, now)
            case events.CheckpointChosen() | events.SearchFailed():
                state.end.hear_search(event)
                effects += self._stage.event(event, now)
            case events.CheckpointDrained(seconds=seconds):
                state.end.allocation.learn_drain(seconds)
            case events.StageFlushed():
                state.end.hear_flush(event)
            case events.EndFound():
                state.draining = event.draining
                effects += state.end.end_found(event, now) + self._stage.event(event, now)
                effects += self._stage.order_all(now) if state.end.allocation.comes_later else []
            case events.LookedAt():
                if state.viewers.look(now):
                    effects += self._stage.event(event, now)
                if state.roster.others:
                    self._beat_at = min(self._beat_at, now + self._beat(now))
            case events.Requested(request=request) if self.refusal(request):
                pass
            case events.Requested(request=Request.STOP):
                state.end.stop()
            case _:
                effects += self._stage.event(event, now)
        # Silence is judged at a tick only: then every message that had arrived has been handled.
        ticked = isinstance(event, events.Tick)
        effects += self.losses.tick(now) if ticked else []
        beat = is_fresh and now >= self._beat_at
        if beat:
            self._beat_at = now + self._beat(now)
            effects += state.lease.renew(now)
            effects += state.stagers.lead() if state.lease.will_hold(now) else []
        # Once rounds have begun, few agents join, and each gets its vote at once, not at a beat.
        late = reporter is not None and state.current is not None and state.lease.may_join(reporter)
        if (beat or late) and self.stage is not Stage.ENDING and state.reconfigure(now):
            # This agent is sent the new configuration at once: it may have to vote with it.
            effects.append(self._stage.order(state.roster[self.me], now))
        effects += state.end.allocation.ask(now)
        effects += self._advance(now, ticked=ticked)
        answered = any(isinstance(e, Send) and e.to == reporter for e in effects)
        if reporter is not None and not answered:
            # Every new report is answered: an agent without orders counts its head as lost.
            effects.append(self._stage.order(state.roster[reporter], now))
        if beat and (more := self._stage.beat(now)):
            effects += more + self._advance(now, ticked=False)
        if beat:  # agents that sent no report since the last beat, and so were sent no order
            before = now - self._beat(now)
            others = (p for p in state.roster.others if p.report)
            waiting = (p for p in others if p.presence.answered.last_sent_at <= before)
            effects += [self._stage.order(peer, now) for peer in waiting]
        effects += self._seat_uses.note(state, self.stage, now)
        if (takeover := state.takeover) is None:
            return effects
        # A head that was no voter before may have to wait for the vote lease of a dead voter. The
        # job may be over by then.
        has_led = isinstance(self._stage, Ended) and takeover.all_have_followed(state.lease)
        return takeover.hold_back(effects, now, confirmed=has_led or state.lease.holds(now))

    def _advance(self, now: float, *, ticked: bool) -> list[Effect]:
        effects: list[Effect] = []
        while True:
            step = self._stage.step(now, ticked=ticked)
            effects += step.effects
            if step.next is not None:
                assert step.next in NEXT[self.stage], f"no way from {self.stage} to {step.next}"
                self._stage = STAGES[step.next](self.state)
                effects += self._stage.enter(now)
            elif not step.effects:
                return effects

    # People who look at the job, and their requests

    def snapshot(self, now: float) -> JobSnapshot:
        return snapshot_of(self._stage, now)

    def refusal(self, request: Request) -> str:
        return self._stage.refusal(request)

    # Reports

    def _note_report(self, peer: Peer, report: Report, now: float) -> list[Effect]:
        state, current = self.state, self.state.current
        if current is not None and report.round == current.number:
            current.note(peer, report, now)
            self._stage.report(peer, report)
        index = peer.place.index
        state.end.notices.hear(index, report, state.round, now)
        state.end.hear(report, now)
        if report.term > state.orders.term and state.lease.holds(now):
            # The agent led in a later term, or followed such a head, but this head has the quorum.
            # The agent obeys no earlier term, so this head continues in a later one.
            state.orders.term = state.rotation.next_term(report.term, self.me)
        effects = state.lease.note_answer(index, report.version, now)
        return effects + self.losses.hear(peer, report, now)
