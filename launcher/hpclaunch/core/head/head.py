"""The head: the state machine of a job's rounds.

Every transition is listed in `NEXT` (stages.py) and made in `_step`. The head keeps the newest
report of every agent and decides from these reports alone, never from the mere arrival of a
message. So a message may come once, twice or late without doing harm.
"""

from __future__ import annotations

import itertools
import math
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from ..consensus.election import Election
from ..consensus.leader_lease import LeaderLease
from ..consensus.rotation import Rotation
from ..placement.assigning import assign
from ..placement.ranks import next_groups
from ..protocol import configuration, ranges
from ..protocol.configuration import Configuration
from ..protocol.effects import Effect, KeepWorkers, Probe, Record, Send
from ..protocol.events import (
    AgentGone,
    CheckpointChosen,
    Diagnosed,
    EndFound,
    Event,
    LookedAt,
    PeerClosed,
    Received,
    Requested,
    SearchFailed,
    Started,
    Tick,
)
from ..protocol.facts import (
    CordonKind,
    DrainFound,
    EndReason,
    JobEnded,
    NodeArrived,
    NodeLost,
    NodesJoin,
    RequestGranted,
    RestartDecided,
)
from ..protocol.messages import PlaceGiven, Report
from ..protocol.model import Grow, Job, Origin, Phase, Request, Verdict
from ..protocol.stages import GOAL, NEXT, Stage
from ..protocol.wording import count
from . import restarts
from .checkpoint_choice import CheckpointChoice
from .cordon import UnfitNodes, cordon
from .growth import Growth
from .hang_watch import HangWatch
from .last_search import LastSearch
from .loss_detection import LossDetector
from .notices import Notices
from .onlookers import Onlookers
from .orders import Orders
from .rendezvous import Rendezvous
from .requeueing import RequeueDecision
from .roster import Awaited, Peer, Roster, all_in
from .round import Round
from .round_beginnings import began
from .straggler_watch import Straggler, StragglerWatch
from .takeover import Takeover, next_unused_round

if TYPE_CHECKING:
    from ..snapshot.job_snapshot import JobSnapshot

BEAT_SLACK = 0.1  # of a beat, for which one may be late
QUESTION_BITS = 32  # of the number of a question, below the term in which it was asked
MOST_ASKED = 8  # agents that are not here, of those that a new head asks
MOST_NEXT_HEADS = 16  # whose addresses a configuration has: every agent is sent them all


class Head:
    """Takes events with `handle(event, now)`, which returns effects. The job is over once `stage`
    is ENDED.
    """

    def __init__(
        self,
        job: Job,
        *,
        me: int = 0,
        term: int = 0,
        configuration: Configuration | None = None,
        anew: bool = False,
    ) -> None:
        self.job, self.timing = job, job.timing
        self.me = me
        self.rotation = Rotation(job.places)
        self.stage = Stage.RENDEZVOUS
        # The number of the next round while there is none, else of the last one.
        self.round = job.first_round
        self.current: Round | None = None  # the last round that began under this head
        self.budget = restarts.Budget(job.max_restarts)
        self.verdict: Verdict | None = None
        self.roster = Roster(job, me)
        presences = [peer.presence for peer in self.roster]
        self.lease = LeaderLease(
            *(self.rotation, job.timing, me, presences, configuration, term),
            elects=job.elects,
            anew=anew,
        )
        # Of questions. Those of another head, which this agent was or is to be, are different.
        self._numbers = itertools.count(1 + (self.lease.tenure << QUESTION_BITS))
        self.losses = LossDetector(self.roster, job.timing)
        self.growth = Growth(job, self.roster, self._numbers)
        self._hangs = HangWatch(job.timing)
        self._stragglers = StragglerWatch(job.timing)
        self.notices = Notices(job, self._numbers)
        self._last_search = LastSearch(job, self._numbers)
        self._draining: tuple[str, ...] = ()  # hosts, as far as Slurm has said in this round
        self._leaving: set[str] = set()  # those for which the workers are given notice
        self._requeue = RequeueDecision(job)
        self.onlookers = Onlookers()
        self._orders = Orders(self.lease, self.roster[me])
        self._rendezvous = Rendezvous(job, self.roster, self.lease, self._numbers, anew=anew)
        self._choosing = CheckpointChoice(job, self.budget, self._numbers)
        self._unfit = UnfitNodes(job)
        self._takeover: Takeover | None = None
        self._tenure_since = math.inf
        self._asked_at = -math.inf  # when `choose_whom_to_ask` was called last
        self._asked: list[int] = []  # what it said
        self._given: dict[str, int] = {}  # the places that were given, by incarnation
        self._begins = 0  # how often the training has begun, as far as this head knows
        self._still_stopping = Awaited()
        self._beat_at = math.inf
        self._hears_out_until = math.inf  # Slurm, before the job ends
        self._stage_since = 0.0

    @property
    def term(self) -> int:
        return self._orders.term

    @property
    def groups(self) -> list[int]:
        """The nodes of the last round in the order of their ranks; [] before the first round."""
        if self.current is not None:
            return self.current.groups
        return [] if self._takeover is None else self._takeover.groups()

    def next_deadline(self) -> float:
        if self.stage is Stage.ENDED:
            return math.inf
        # Most often a report comes right after the time of a beat, and wakes this agent anyway.
        beat_at = self._beat_at + BEAT_SLACK * self.timing.beat
        deadlines = [beat_at, self.losses.check_at, self.notices.ask_at]
        if self._last_search.is_open or self._hears_out_until < math.inf:
            is_running = self.stage is Stage.RUNNING
            lease = [self.lease.renewable_until] if is_running else []
            return min(*deadlines, self._last_search.until, self._hears_out_until, *lease)
        if self.stage in (Stage.RENDEZVOUS, Stage.CHOOSING):
            deadlines.append(self.notices.stop_at)
        if self.stage is Stage.CHOOSING:
            deadlines.append(self._choosing.next_deadline(self._rendezvous.paused_until))
        if self.stage is Stage.RENDEZVOUS:
            deadlines.append(self._rendezvous.next_deadline())
            if self._asked_at < self._asks_until and self._unasked:
                deadlines += [at for at in (self._asks_at, self._asks_until) if at > self._asked_at]
        if self.stage is Stage.RUNNING:
            deadlines.append(self.lease.renewable_until)
            watches = (self._hangs, self._stragglers, self.notices)
            if not self._only_waits_for_slurm:
                deadlines.append(self.notices.stop_at)
                deadlines += [watch.next_deadline() for watch in watches]
        if self.stage is Stage.ENDING:
            deadlines.append(self._stage_since + self.timing.goodbye)
        return min(deadlines)

    @property
    def can_be_replaced(self) -> bool:
        """Whether the others can elect another head, and go on without this node."""
        elected = self.current is not None or (self._takeover is not None and self._takeover.begun)
        left = self.roster.nodes - {self.job.places[self.me].node}
        return elected and self.job.elects and len(left) >= self._rendezvous.fewest

    @property
    def is_confirmed(self) -> bool:
        """Whether this agent certainly leads, or has led: not one that has just been elected."""
        return self._takeover is None or self._takeover.is_confirmed

    @property
    def is_short(self) -> bool:
        """Whether too few nodes are there for a round."""
        return self._rendezvous.is_short

    @property
    def knows_rounds(self) -> bool:
        """Whether it has begun rounds, or has taken over from a head that may have. If not, and an
        agent tells of one, then this agent was started anew. Others may elect a head at this very
        moment, so it answers nobody of theirs, and waits until that head is heard.
        """
        return self.current is not None or self._takeover is not None

    @property
    def deposed_at(self) -> float:
        """When another agent may begin to lead, because this head has had no quorum for so long."""
        return max(self.lease.until, self._tenure_since + self.timing.loss)

    def miss(self, seconds: float, now: float) -> None:
        """This process did not run for so long, until now."""
        self.lease.miss(seconds, now)
        for peer in self.roster:
            peer.presence.miss(seconds, now)

    def take_over(self, election: Election[Report], now: float) -> list[Effect]:
        """Begin to lead in place of a head that is lost, after an election that we have won."""
        self._takeover = takeover = Takeover(self.job, self.roster, election, now)
        self.lease.dead_head = election.old if takeover.old_is_dead else None
        self.budget.take_over(election.configuration.record.tally)
        self._unfit.take_over(election.configuration.record.unfit)
        self._begins = int(takeover.begun)
        self._stage_since = self._tenure_since = now
        self.notices.begin_to_ask(now)
        self.round = max(takeover.next_round, self.job.first_round)
        self._rendezvous.take_over(now, begun=takeover.begun)
        self._rendezvous.pause(takeover.not_before)
        for peer in self.roster:
            self.losses.expect(peer)
        self._beat_at = now + self.timing.beat
        return self._renew(now) + self._order_all(now)

    def handle(self, event: Event, now: float) -> list[Effect]:
        if self.stage is Stage.ENDED:
            return []
        effects: list[Effect] = []
        reporter = None  # the agent that has sent a new report, which is to be answered
        is_fresh = isinstance(event, Tick)  # no message that was overtaken by a later one
        match event:
            case Started():
                self._stage_since = self._tenure_since = now
                self.notices.begin_to_ask(now)
                self._rendezvous.begin(now)
                effects += self._renew(now)
                self._beat_at = now + self.timing.beat if self.roster.others else math.inf
            case Received(sender=sender, message=Report() as report) if sender >= len(self.roster):
                effects += self._give_place(sender, report)
            case Received(sender=sender, message=Report() as report) if self._is_of_before(report):
                effects += self._dismiss(sender, report, now)
            case Received(sender=sender, message=Report() as report):
                peer = self.roster[sender]
                follows = self.lease.is_of_ours(report.term)
                if peer.accept(report, now, follows=follows):
                    is_fresh = True
                    # Our own agent needs an answer only to what its SIGTERM means.
                    reporter = sender if sender != self.me or report.warned else None
                    effects += self._note_report(peer, report, now)
            case PeerClosed(index=index) if index < len(self.roster):
                peer = self.roster[index]
                peer.presence.contact.close(now)
                if not peer.lost and (last := peer.report) is not None:
                    effects.append(Probe(index, last.address, last.port, last.incarnation))
            case AgentGone(index=index) if self.roster[index].presence.can_be_dead():
                self._rendezvous.pause(now + self.timing.killing)
                effects += self._note_losses(self.losses.died(self.roster[index], now))
                effects += self._renew(now)
            case CheckpointChosen(number=number) if self._last_search.has_asked(number):
                self._last_search.answer(event)
            case CheckpointChosen(number=number) if self.growth.has_asked(number):
                self.growth.chosen(event, now)
                self._note_save(event, now)
            case CheckpointChosen(number=number) if self.onlookers.has_asked(number):
                self._note_save(event, now)
            case CheckpointChosen() if self.stage is Stage.CHOOSING:
                if self._choosing.chosen(event):
                    self._note_save(event, now)
            case SearchFailed(number=number) if self._last_search.has_asked(number):
                self._last_search.answer(None)
            case SearchFailed(number=number) if self.growth.has_asked(number):
                self.growth.failed()
                self.onlookers.search_failed()  # which this search has replaced
            case SearchFailed(number=number) if self.onlookers.has_asked(number):
                self.onlookers.search_failed()
            case EndFound():
                effects += self.notices.found(event, now) + self._requeue.found(event)
                effects += self._note_drains(event.draining, now)
                effects += self._order_all(now) if self.notices.comes_later else []
            case Diagnosed() if self.stage is Stage.RENDEZVOUS:
                effects += self._rendezvous.explain(event, now)
            case LookedAt():
                effects += self._look(now)
            case Requested(request=request) if not self.refusal(request):
                effects += self._grant(request)
        # Silence is judged at a tick only: then every message that had arrived has been handled.
        ticked = isinstance(event, Tick)
        if ticked and now >= self.losses.check_at:
            effects += self._note_losses(self.losses.check(now)) + self.losses.notice(now)
        beat = is_fresh and now >= self._beat_at
        if beat:
            self._beat_at = now + self.timing.beat
            effects += self._renew(now)
            effects += self._reconfigure(now)
        effects += self.notices.ask(now)
        effects += self._advance(now, ticked=ticked)
        answered = any(isinstance(e, Send) and e.to == reporter for e in effects)
        if reporter is not None and not answered:
            # Every new report is answered: an agent that hears nothing counts its head as lost.
            effects.append(self._order(self.roster[reporter], now))
        if beat and self.stage is Stage.RUNNING:
            effects += self._grow(now)
        if beat:  # most agents have had an order since the last beat, in answer to a report
            before = now - self.timing.beat
            others = (p for p in self.roster.others if p.report)
            waiting = (p for p in others if p.presence.answered.last_sent_at <= before)
            effects += [self._order(peer, now) for peer in waiting]
        if self._takeover is None:
            return effects
        return self._takeover.hold_back(effects, confirmed=self.lease.holds(now))

    # People who look, and what they ask for

    def snapshot(self, now: float) -> JobSnapshot:
        from .job_snapshots import snapshot_of  # no start of an agent pays for it

        return snapshot_of(self, now, entered=now - self._stage_since)

    def _look(self, now: float) -> list[Effect]:
        """Ask for what is only wanted while somebody looks. The other agents are asked in answer to
        their next reports.
        """
        wants_vitals = self.onlookers.look(now)
        if self.stage is not Stage.RUNNING:
            return []
        effects: list[Effect] = [self._order(self.roster[self.me], now)] if wants_vitals else []
        idle = not self.growth.is_looking and not self._last_search.is_open
        if self.job.saves and idle and self.onlookers.wants_search(now):
            number = next(self._numbers)
            self.onlookers.begin_search(number, now)
            effects.append(replace(self._choosing.search, number=number))
        return effects

    @property
    def straggler(self) -> Straggler | None:
        return self._stragglers.named if self.stage is Stage.RUNNING else None

    def needs_search(self, number: int) -> bool:
        """Return whether no round can begin without the answer to the search of this number."""
        is_choosing = self.stage is Stage.CHOOSING and self.verdict is None
        return is_choosing and number == self._choosing.search_number

    def refusal(self, request: Request) -> str:
        """Why it cannot be done now; "" if it can."""
        if self.verdict is not None:
            return f"the job is about to end: {self.verdict.reason}"
        if request is Request.STOP:
            return ""
        if self.stage is not Stage.RUNNING:
            return "no round of the training is running"
        if request is Request.NOTICE and not self.timing.notice:
            return "its workers are to have no notice (--notice off)"
        return ""

    def _grant(self, request: Request) -> list[Effect]:
        match request:
            case Request.STOP:
                reason = "ended by hpclaunch stop"
                code, total = 128 + signal.SIGTERM, self.budget.total
                self.verdict = Verdict(code, reason, Origin.STOP, restarts=total)
                return []
            case Request.RESTART:
                self._current_round.ends.add(EndReason.ASKED)
            case Request.NOTICE:
                self.notices.give_soon()
        return [Record(RequestGranted(request))]

    # Agents without a place

    def _give_place(self, sender: int, report: Report) -> list[Effect]:
        """Give the agent a place that nobody has had, if there is one. While agents of an earlier
        start end, they still have theirs.
        """
        given = self._given
        if report.incarnation not in given and not self._rendezvous.is_paused:
            free = self.roster.absent - {self.me, *given.values()}
            given |= {report.incarnation: min(free)} if free else {}
        index = given.get(report.incarnation)
        return [] if index is None else [Send(sender, PlaceGiven(report.incarnation, index))]

    # Taking in reports and losses

    def _note_report(self, peer: Peer, report: Report, now: float) -> list[Effect]:
        current = self.current
        if current is not None and report.round == current.number:
            current.note(peer, report, now)
            self.onlookers.hear(peer, report, now)
            self._stragglers.hear(peer.place.index, report)
        self.notices.hear(peer.place.index, report, self.round, now)
        if self.verdict is None:
            self.verdict = restarts.verdict_of_agent(report, self.budget.total)
            if self.verdict is not None and self.verdict.origin is Origin.SIGTERM:
                self.notices.ask_again(now)
        if report.term > self.term and self.lease.holds(now):
            # The agent led in a later term, or followed such a head, but we have the quorum. It
            # obeys no earlier term, so we go on in a later one.
            self._orders.term = self.rotation.next_term(report.term, self.me)
        effects = self._keep_workers(self.lease.note_answer(peer.place.index, report.version, now))
        was_lost = peer.lost
        was_absent = peer.place.index in self.roster.absent
        noted = self.losses.note(peer, report, ending=self.stage is Stage.ENDING)
        if was_absent and self.current is not None and peer.place.node in self.roster.nodes:
            effects.append(Record(NodeArrived(peer.host)))
        if (peer.lost and not was_lost) or peer.unfit:
            self._end_round_without(peer)
        return effects + self._unfit.note(peer, self.round) + noted

    def _note_save(self, newest: CheckpointChosen, now: float) -> None:
        self.onlookers.chose(newest, now)
        self.notices.learn(newest.took)

    def _note_losses(self, lost: list[Peer]) -> list[Effect]:
        """These agents were just lost. While the job ends, that is not recorded: they have most
        likely left, and their last report did not arrive.
        """
        for peer in lost:
            self._end_round_without(peer)
        if self.stage is Stage.ENDING:
            return []
        return [Record(NodeLost(peer.host, peer.lost)) for peer in lost]

    def _end_round_without(self, peer: Peer) -> None:
        """End the round if the agent takes part in it."""
        if self.current is not None and peer.assignment is not None:
            self.current.ends.add(EndReason.LOSS)

    # The leader lease

    def _renew(self, now: float) -> list[Effect]:
        return self._keep_workers(self.lease.renew(now))

    def _keep_workers(self, until: float | None) -> list[Effect]:
        """Extend the worker lease of this agent's own workers; None: it stays as it is."""
        return [] if until is None else [KeepWorkers(until)]

    def _reconfigure(self, now: float) -> list[Effect]:
        """Once the first round has begun, the agents that are there are the voters. This agent is
        one of them, and is told of a new configuration at once: it may have to vote with it.
        """
        if self.current is None or self.stage is Stage.ENDING or not self.lease.holds(now):
            return []
        version = self.lease.configuration.version
        cordoned, unfit = ranges.written(self.roster.cordoned), self._unfit.recorded
        record = configuration.Record(self.round, self.budget.tally, cordoned, unfit)
        self.lease.reconfigure(record, self._next_heads())
        self.lease.drop_old_configuration()
        is_new = self.lease.configuration.version > version
        return [self._order(self.roster[self.me], now)] if is_new else []

    def _next_heads(self) -> tuple[tuple[int, str], ...]:
        """The addresses of those who would lead after this agent."""
        after = (self.roster[agent] for agent in self.rotation.after(self.me, MOST_NEXT_HEADS))
        return tuple((p.place.index, p.report.address) for p in after if p.report and not p.lost)

    # The stages

    def _enter(self, stage: Stage, now: float) -> None:
        assert stage in NEXT[self.stage], f"the head cannot go from {self.stage} to {stage}"
        self.stage = stage
        self._stage_since = now
        if stage is Stage.STOPPING:
            self._current_round.stop(now)

    def _advance(self, now: float, *, ticked: bool) -> list[Effect]:
        """Take steps until there is nothing more to do."""
        effects: list[Effect] = []
        while True:
            stage = self.stage
            step = self._step(now, ticked=ticked)
            effects += step
            if not step and self.stage is stage:
                return effects

    def _step(self, now: float, *, ticked: bool) -> list[Effect]:
        """Make one transition, or do what this stage asks for without one."""
        match self.stage:
            case Stage.RENDEZVOUS:
                return self._rendezvous_step(now, ticked=ticked)
            case Stage.CHOOSING:
                return self._choosing_step(now, ticked=ticked)
            case Stage.RUNNING:
                return self._running_step(now, ticked=ticked)
            case Stage.STOPPING:
                return self._stopping_step(now)
            case Stage.ENDING:
                left = self.roster.all_have_left(but_for=self._never_arrived(now))
                if left or now >= self._stage_since + self.timing.goodbye:
                    self._enter(Stage.ENDED, now)
            case Stage.ENDED:
                pass
        return []

    def _rendezvous_step(self, now: float, *, ticked: bool) -> list[Effect]:
        if (ended := self._end_without_round(now, ticked=ticked)) is not None:
            return ended
        ready, effects = self._can_begin_round(now)
        if not ready:
            return effects + self._rendezvous.notice(now)
        self._rendezvous.complete()
        self._enter(Stage.CHOOSING, now)
        return effects + self._choosing.begin(now)

    def _end_without_round(self, now: float, *, ticked: bool) -> list[Effect] | None:
        """End the job if there can be no further round; None if there can be one."""
        self._rendezvous.update(now, ticked=ticked)
        self.verdict = self.verdict or self._rendezvous.verdict(now, self.budget.total)
        self.verdict = self.verdict or self.notices.verdict_of_warning(self.budget.total)
        is_over = self._last_search.is_open or self.notices.is_over(now)
        if self.verdict is None and is_over:
            return self._end_in_time(now)
        return None if self.verdict is None else self._end(now)

    def _can_begin_round(self, now: float) -> tuple[bool, list[Effect]]:
        """Whether a round can begin now. The effects extend the worker lease, if the leader lease
        had to be renewed to find out.
        """
        if not self._rendezvous.is_ready(self._next_groups):
            return False, []
        if now < self._asks_until and self._unasked:
            return False, []
        effects = [] if self.lease.will_hold(now) else self._renew(now)
        return self.lease.will_hold(now), effects

    def _never_arrived(self, now: float) -> set[int]:
        """Return the agents that the job began without; none while they may still be late."""
        if now < self._tenure_since + self.timing.last_call:
            return set()
        return self.roster.absent - self.lease.configuration.agents

    # Whether another agent leads already

    @property
    def _unasked(self) -> list[int]:
        """Before the first round: agents that are not here, and may follow another head."""
        if self.knows_rounds or not self.job.elects:
            return []
        return sorted(self.roster.absent.intersection(self.rotation.agents))

    def choose_whom_to_ask(self, now: float) -> list[int] | None:
        """Return to which agents to report as well; None if that is as before."""
        self._asked_at = now
        if not self._unasked:
            asked = []
        elif not self._asked and now >= self._asks_at:
            asked = self._unasked[:MOST_ASKED]
        else:
            return None
        if asked == self._asked:
            return None
        self._asked = asked
        return asked

    def _is_of_before(self, report: Report) -> bool:
        """Return whether an agent belongs to an earlier start of this head or, before the first
        round, to any other head: see knows_rounds.
        """
        if report.round < 0 or not self.knows_rounds:
            return report.round >= 0
        return self.lease.is_of_ours(report.term) and report.start not in ("", self._orders.start)

    def _dismiss(self, sender: int, report: Report, now: float) -> list[Effect]:
        """Let it end, unless another head may have it."""
        if self.job.elects and not self.knows_rounds:
            return []
        if report.phase is not Phase.ENDED:
            self._rendezvous.pause(now + self.timing.killing)
        return [self._orders.dismissal(sender, report)]

    @property
    def _asks_at(self) -> float:
        return self._tenure_since + self.timing.election

    @property
    def _asks_until(self) -> float:
        return self._asks_at + 2 * self.timing.election

    def _next_groups(self) -> list[int]:
        return next_groups(self.groups, self.roster.nodes_by_task, self.job.most)

    def _next_participants(self) -> list[Peer]:
        nodes = set(self._next_groups())
        return [p for p in self.roster if p.place.node in nodes]

    def _choosing_step(self, now: float, *, ticked: bool) -> list[Effect]:
        if (ended := self._end_without_round(now, ticked=ticked)) is not None:
            return ended
        if self._rendezvous.is_short:
            self._enter(Stage.RENDEZVOUS, now)
            return []
        choosing = self._choosing
        if said := choosing.notice(now):
            return said
        if choosing.choice is None:
            return []
        # Ask again whether all are ready. If an agent's fork server was killed meanwhile, its store
        # port is dead until it reports a new one: workers would wait for a store that nobody has.
        ready, effects = self._can_begin_round(now)
        if not ready:
            return effects
        if not choosing.done:
            asked = choosing.asked
            considered = choosing.consider(self._next_participants, now)
            if considered is not None:
                again = self._order_all(now) if choosing.asked != asked else []
                return effects + considered + again
            if choosing.verdict is None and not choosing.done:
                return effects
        self.verdict = choosing.verdict or self.budget.begin(choosing.choice)
        if self.verdict is not None:
            return effects + self._end(now)
        return effects + self._start(choosing.choice, now)

    def _start(self, checkpoint: CheckpointChosen, now: float) -> list[Effect]:
        self.round = max(self.round, next_unused_round(self.roster))
        last, groups, participants = self.groups, self._next_groups(), self._next_participants()
        assigned = assign(
            self.job,
            {p.place.index: p.report for p in participants if p.report is not None},
            groups=groups,
            number=self.round,
            restarts=self.budget.total,
            checkpoint=checkpoint.path,
        )
        for peer in self.roster:
            peer.assignment = assigned.get(peer.place.index)
        self.current = Round(self.round, participants, groups, now, checkpoint.path)
        self.growth.begin()
        self._draining, self._leaving = (), set()
        self._hangs.forget()
        self.onlookers.begin()
        self._stragglers.begin(self.current, now)
        self.notices.begin(now)
        self._enter(Stage.RUNNING, now)
        self._reconfigure(now)  # all are sent orders below
        self._begins += 1
        fact = began(self.job, self.roster, last, self.current, checkpoint, self._begins)
        return [Record(fact), *self._order_all(now)]

    def _running_step(self, now: float, *, ticked: bool) -> list[Effect]:
        """Collect the reasons to end the round, and end it if there is one that matters."""
        current = self._current_round
        done = all_in(Phase.DONE, current.number, current.participants)
        # Nobody waits any longer for what they have left behind, and the training is not repeated.
        hurried = EndReason.LOSS in current.ends or self.notices.is_over(now)
        done = done or (hurried and current.has_ended_well)
        if current.has_failed and not done:  # if all are done, only a store failed: nobody needs it
            current.ends.add(EndReason.FAILURE)
        if self.verdict is None and not done:
            self.verdict = self.notices.verdict_of_warning(self.budget.total)
            if self.verdict is None and self.notices.is_over(now):
                self.verdict = self.notices.verdict_of_end(None, now, self.budget.total)
                current.ends.add(EndReason.TIME)
        if self.verdict is not None:
            current.ends.add(EndReason.VERDICT)
        if ticked and now >= self.lease.renewable_until:
            current.ends.add(EndReason.QUORUM)
        # Once all the work is done, a loss changes nothing, and no larger round is needed.
        moot = {EndReason.LOSS, EndReason.GROWTH} if done else set()
        if current.ends - moot:
            self._enter(Stage.STOPPING, now)
            return self._order_all(now)
        if not done or not self.lease.holds(now):
            return self._watch_workers(current, now) + self._give_notice(current, now)
        if self._only_waits_for_slurm:
            return []
        # A search takes time, in which what they have done does not change.
        if self._last_search.has_begun or self.notices.have_left(now):
            searched = self._last_search.ask(self._choosing.search, now, ended_well=True)
            if searched is not None:
                return searched
            saved = self._last_search.found
            self.verdict = self.notices.verdict_of_leaving(saved, now, self.budget.total)
            if self.verdict is not None and self._leaving and not self.notices.knows_end:
                self.verdict = None
                drained, effects = self._relievable(current), list[Effect]()
                if drained:
                    effects = cordon(self.roster, drained, CordonKind.DRAINING, self.round)
                self._enter(Stage.STOPPING, now)
                return effects + self._order_all(now)
            if self.verdict is not None:
                return self._end(now)
        again = f" after {count(self.budget.total, 'restart')}" if self.budget.total else ""
        reason = f"all workers ended with 0{again}"
        self.verdict = Verdict(0, reason, Origin.DONE, restarts=self.budget.total)
        return self._end(now)

    @property
    def _only_waits_for_slurm(self) -> bool:
        """All workers are done, and Slurm has yet to say why it has ended them."""
        current = self._current_round
        return self.notices.waits_for_slurm and all_in(
            Phase.DONE, current.number, current.participants
        )

    def _watch_workers(self, current: Round, now: float) -> list[Effect]:
        is_last = self.budget.is_last(saves=self.job.saves)
        hang = self._hangs.check(current, now, is_last=is_last)
        before = self._stragglers.named
        straggler = self._stragglers.check(current, now)
        if self._stragglers.named not in (before, None):
            self.growth.begin(since=now)
        if hang is None and straggler is None:
            return []
        return (hang or []) + (straggler or []) + self._order_all(now)

    def _give_notice(self, current: Round, now: float) -> list[Effect]:
        said = self.notices.check(current, now, holds=self.lease.holds(now))
        return [] if said is None else said + self._order_all(now)

    @property
    def _current_round(self) -> Round:
        assert self.current is not None, "there is a round in this stage"
        return self.current

    def _grow(self, now: float) -> list[Effect]:
        """End the round if it is time to go on with other nodes: with newcomers in a larger one, or
        with a spare in place of a straggler.
        """
        current = self._current_round
        if current.ends or current.has_ended_well:
            return []
        hosts = self.growth.newcomers(current.groups, current.number)
        slow, drained = self._replaceable_straggler(current), self._relievable(current)
        if drained and self.growth.has_new_checkpoint:
            effects = cordon(self.roster, drained, CordonKind.DRAINING, self.round)
        elif slow and self.growth.has_new_checkpoint:
            effects = cordon(self.roster, [slow], CordonKind.SLOW, self.round)
        elif hosts and self.growth.is_worthwhile:
            effects = [Record(NodesJoin(tuple(dict.fromkeys(hosts))))]
        elif drained or slow or (hosts and self.job.grow is Grow.CHECKPOINT):
            return self.growth.look(self._choosing.search, now)
        else:
            return []
        current.ends.add(EndReason.GROWTH)
        return effects + self._advance(now, ticked=False)

    def _note_drains(self, hosts: tuple[str, ...], now: float) -> list[Effect]:
        """Slurm drains these nodes: spares take the places of those that are in the round, once
        the workers have saved.
        """
        if self.stage is not Stage.RUNNING:
            return []
        self._draining = hosts
        new = [host for host in self._relievable(self._current_round) if host not in self._leaving]
        if not new:
            return []
        self._leaving.update(new)
        self.growth.begin(since=now)
        self.notices.give_soon()
        return [Record(DrainFound(tuple(new)))]

    def _relievable(self, current: Round) -> list[str]:
        """The hosts of the round that Slurm drains, as far as there are spares for them now."""
        if not (self._draining and self.job.saves):
            return []
        fit = {p.place.node for p in self.roster if p.host not in self._draining}
        spares = (self.roster.nodes & fit).difference(current.groups)
        used = dict.fromkeys(p.host for p in current.participants if p.host in self._draining)
        return list(used)[: len(spares)]

    def _replaceable_straggler(self, current: Round) -> str:
        """Its host; "" if there is none, or no spare for it."""
        named = self._stragglers.named
        spares = self.roster.nodes.difference(current.groups)
        if named is None or not (self.job.replaces_stragglers and self.job.saves and spares):
            return ""
        return self.roster[named.agent].host

    def _stopping_step(self, now: float) -> list[Effect]:
        """Go on, to the next round or to the end, once no worker of this round is left anywhere."""
        current = self._current_round
        if not self._still_stopping.none_left(
            lambda: current.participants,
            lambda p: bool(p.lost) or p.has_stopped(current.number),
        ):
            return []
        if self.verdict is None and current.has_failed and self.notices.may_have_saved:
            searched = self._last_search.ask(self._choosing.search, now)
            if searched is not None:
                return searched
            saved = self._last_search.found
            self.verdict = self.notices.verdict_of_saving(saved, now, self.budget.total)
        if current.is_programs_fault and self.verdict is None:
            self.verdict = self.budget.spend(
                current.failures.values(),
                saves=self.job.saves,
                spares=bool(self.roster.nodes.difference(current.groups)),
                resumed=current.resumed,
                begun=current.begun,
            )
        if EndReason.TIME in current.ends:
            return self._end_in_time(now)
        if self.verdict is not None:
            return self._end(now)
        self.round += 1
        self._last_search = LastSearch(self.job, self._numbers)
        self._enter(Stage.RENDEZVOUS, now)
        self._rendezvous.begin(now)
        ended: list[Effect] = [Record(current.ended(now))]
        return ended + self._restart(current, now) if current.is_programs_fault else ended

    def _restart(self, failed: Round, now: float) -> list[Effect]:
        """Prepare the restart to come. A node that fails again and again delays it, or is cordoned;
        so does a file system or a network that does.
        """
        node_delay = self.budget.node_delay if self.job.nodes > 1 else 0.0
        outage_delay = self.budget.outage_delay
        self._rendezvous.pause(now + max(node_delay, outage_delay))
        fact = RestartDecided(
            failed.cause.moved(-now),
            used=self.budget.used,
            most=self.budget.most,
            is_last=self.budget.tally.pending_verdict is not None,
            node_delay=node_delay,
            outage_delay=outage_delay,
        )
        if not self.budget.suspect:
            return [Record(fact)]
        hosts, kind = [self.budget.suspect], CordonKind.FAILING
        return [Record(fact), *cordon(self.roster, hosts, kind, self.round)]

    def _end_in_time(self, now: float) -> list[Effect]:
        """End the job before Slurm does, once it is known what was saved since the notice."""
        searched = self._last_search.ask(self._choosing.search, now)
        if searched is not None:
            return searched
        saved = self._last_search.found
        self.verdict = self.notices.verdict_of_end(saved, now, self.budget.total)
        return self._end(now)

    def _end(self, now: float) -> list[Effect]:
        """End the job with the verdict, once it is known whether it is started again."""
        assert self.verdict is not None, "a job ends with a verdict"
        until = self.notices.heard_out_at(self.verdict)
        self._hears_out_until = until if now < until else math.inf
        if now < until:
            return []
        verdict, progress = self.notices.reconsidered(self.verdict), False
        if self._requeue.depends_on_progress(verdict):
            searched = self._last_search.ask(self._choosing.search, now)
            if searched is not None:
                return searched
            saved = self._last_search.found
            progress = saved is None or self.budget.is_beyond_first(saved)
        left = self.notices.left(now)
        self.verdict = self._requeue.decide(verdict, left or 0.0, progress=progress)
        was_running = self.stage in (Stage.RUNNING, Stage.STOPPING)
        facts: list[Effect] = [Record(self._current_round.ended(now))] if was_running else []
        self._enter(Stage.ENDING, now)
        unfit = {p.host: p.unfit for p in self.roster if p.unfit}
        facts.append(Record(JobEnded(self.round, self.verdict.moved(-now), tuple(unfit.items()))))
        return facts + self._order_all(now)

    # Orders

    def _order_all(self, now: float) -> list[Effect]:
        # Lost agents are told how the job ended as well: some may be alive and hear it.
        receivers = self.roster if self.stage is Stage.ENDING else self.roster.present
        return [self._order(p, now) for p in receivers if p.report is not None]

    def _order(self, peer: Peer, now: float) -> Send:
        look = self._choosing.look(peer) if self.stage is Stage.CHOOSING else None
        goal = GOAL[self.stage]
        return self._orders.order(
            peer,
            goal,
            self.round,
            now,
            verdict=self.verdict,
            look=look,
            gather=self._hangs.gather,
            sample=self._stragglers.number,
            notice=self.notices.offer,
            later=self.notices.comes_later,
            vitals=self.onlookers.wanted(now),
        )
