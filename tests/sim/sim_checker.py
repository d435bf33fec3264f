"""The laws of the simulation, checked after every step of every agent.

A checker knows the whole cluster, which no agent does, and the plan: what may be asked of an
outcome depends on the faults there were.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim_plan import Kind

from hpclaunch.core.ending.table import ENDS
from hpclaunch.core.head.head import Head
from hpclaunch.core.head.roster import Peer
from hpclaunch.core.head.round import Round
from hpclaunch.core.protocol import effects, events
from hpclaunch.core.protocol.facts import EndReason, Fact, StragglerNamed
from hpclaunch.core.protocol.messages import Hint, PlaceGiven, Report
from hpclaunch.core.protocol.model import (
    EXIT_SAVED,
    HEAD,
    NO_RANK,
    Assignment,
    Culprit,
    EndKind,
    Evidence,
    Grow,
    Origin,
    Phase,
    Place,
    Sequel,
    Verdict,
)
from hpclaunch.core.protocol.stages import Stage
from hpclaunch.observe.console import Console
from hpclaunch.observe.notifications import Notifications

if TYPE_CHECKING:
    from cluster_sim import Simulation
    from sim_agent import Agent
    from sim_steps import Pace, Steps
    from sim_training import Worker

RUNNING = Phase.RUNNING
SUDDEN = 3.0  # seconds; an end that is known later than this is too sudden to stop all workers
# With these, a head may live, and others not hear it.
APART = {Kind.STALL, Kind.FREEZE, Kind.CUT, Kind.MUTE, Kind.DEAF, Kind.PARTITION}
APART |= {Kind.REJECT, Kind.REJECT_ONE_WAY}


class BrokenLawError(AssertionError):
    """A law was broken."""


@dataclass(frozen=True, slots=True)
class Before:
    """An agent as it was before the step."""

    state: tuple[object, ...]
    due: bool  # a deadline had passed: something may happen whatever the event was
    stale: bool  # the event is a message that is not newer than one which came before


class Checker:
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.newest: dict[tuple[object, ...], tuple[int, int]] = {}  # (to, sender, kind) -> number
        self.hasty: Counter[int] = Counter()  # after how many ticks the deadline had passed already
        self.facts: dict[
            tuple[int, int], tuple[object, ...]
        ] = {}  # of each round, the same for all
        self.started: dict[tuple[int, int], set[int]] = {}  # which agents have started it
        # Of each round that a head has begun, in this order: the restarts that the job had had by
        # then, how many were given back, how many may have been, and the checkpoint.
        self.begun: dict[tuple[int, int], tuple[int, int, int, str]] = {}
        self.lost: set[int] = set()  # rounds in which something did fail
        self.stragglers: set[str] = set()  # hosts that were named
        self.hung: set[int] = set()  # rounds that were ended because workers hang
        self.grown: set[int] = set()  # rounds that were ended to continue with more nodes
        self.asked: set[int] = set()  # rounds that were ended because the user has asked for it
        self.cordoned: dict[int, set[int]] = {}  # nodes that a head has cordoned
        self.observers: dict[int, tuple[Console, Notifications]] = {}  # of each agent
        self.left: list[tuple[int, bool]] = []  # who has, and whether it was for want of a head
        self.first = ""  # the process that began the job's first round
        self.done: set[int] = set()  # agents that have left with success
        self.requeued_at: dict[int, float] = {}  # by the term of the head, where there are several
        self.led: dict[str, effects.LeadStagers] = {}  # the last one of each process
        self.leaders: dict[int, int] = {}  # of stagers: the agent, by term
        self.noticed = 0  # how often a worker has taken a notice
        self.ended_apart = False  # a head was struck while it sent the others the end
        plan = sim.plan  # calm: no answer takes as long as a lease
        self.calm = plan.rests and not (plan.drop or plan.slow or plan.losses)

    def _at(self, peer: Peer) -> Agent:
        """The agent that a head has in this place. Its number differs from its index where agents
        get their places as they come.
        """
        agents, report = self.sim.agents, peer.report
        if report is None or self.sim.plan.numbered:
            return agents[peer.place.index]
        return agents[int(report.incarnation[1:].rstrip("+"))]

    def forget(self, index: int) -> None:
        """Another process is there in its place."""
        self.newest = {key: n for key, n in self.newest.items() if index not in key[:2]}
        for starters in self.started.values():
            starters.discard(index)
        self.hasty[index] = 0

    # Every step

    def before(self, agent: Agent, event: events.Event) -> Before:
        stale = False
        if isinstance(event, events.Received) and not isinstance(event.message, Hint | PlaceGiven):
            message = event.message  # of a process, or for one, that another may have replaced
            key = (agent.index, event.sender, type(message), message.incarnation)
            number = (getattr(event.message, "term", 0), event.message.serial)
            stale = number <= self.newest.get(key, (-1, -1)) and not _is_unknown(agent, event)
            self.newest[key] = max(number, self.newest.get(key, number))
        due = agent.clock >= agent.deadline
        return Before(_state(agent), due, stale)

    def after(
        self, agent: Agent, event: events.Event, todo: list[effects.Effect], was: Before
    ) -> None:
        control, head = agent.control, agent.control.head
        self._require(control.member.round >= was.state[1], agent, "went back to an old round")
        if head is not None:
            self._require(head.state.round >= was.state[4], agent, "went back as the head")
        if was.stale and not was.due:
            # To a report it has heard while it led, it says once more who leads now. A head that is
            # about to begin a round renews its lease whenever it can.
            acted = [e for e in todo if not (_is_hint(e) or isinstance(e, effects.KeepWorkers))]
            same = _state(agent) == was.state and not acted
            self._require(same, agent, f"acted on an old message: {event}")
        # A deadline may set the next one to this very moment: that a head is dead, and no grace.
        clock, ticked = agent.clock, isinstance(event, events.Tick)
        late = agent.deadline <= clock and not control.exited
        spins = self.hasty[agent.index] > 1 and ticked and late
        self._require(not spins, agent, "spins: its deadline stays in the past")
        self.hasty[agent.index] = self.hasty[agent.index] + ticked if late else 0
        if isinstance(event, events.ForkServerReplaced):
            self.lost |= {control.member.round, control.member.round + 1}  # or one on its way
        elif isinstance(event, events.WorkerExited) and event.code and was.state[0] is RUNNING:
            self.lost.add(control.member.round)
        elif isinstance(event, events.HealthFound) and event.unfit:
            mine = control.member.round
            self.lost |= {mine, max(mine + 1, self.sim.plan.job.first_round)}
        current = None if head is None else head.state.current
        if head is not None and current is not None:
            self._hangs(agent, current)
            if EndReason.GROWTH in current.ends:
                self.grown.add(head.state.round)
                self.lost.add(head.state.round)
            if EndReason.ASKED in current.ends:
                self.asked.add(current.number)
                self.lost.add(current.number)
        if isinstance(event, events.LeaseOver):
            self.lost.add(control.member.round)
            suspended = Kind.SUSPEND in self.sim.plan.kinds
            self._require(suspended or not self.calm, agent, "has heard nothing for a whole lease")
        if head is not None and not head.state.lease.holds(clock) and not self.calm:
            self.lost.add(head.state.round)
        for effect in todo:
            if isinstance(effect, effects.Exit):
                self._exits(agent, effect.verdict.reason)
                self.done |= {agent.index} if effect.verdict.code == 0 else set()
            elif isinstance(effect, effects.KillIdleWorkers):
                lost = control.member.round in self.lost or self.sim.plan.losses
                self._require(lost, agent, "is hasty with workers of a round that was not lost")
            elif isinstance(effect, effects.KillWorkers):
                self._patient(agent)
            elif isinstance(effect, effects.LeadStagers):
                self._leads(agent, effect)
            elif isinstance(effect, effects.ChooseCheckpoint) and effect.stages:
                led = {place.index for place in self.led[agent.name].others}
                needed = set(effect.agents) - {control.index}
                self._require(needed <= led, agent, f"leads the stagers of {led}, not {needed}")
            elif isinstance(effect, effects.Record):
                self._observe(agent, effect.fact)
        if head is not None:
            self._budget(agent, took_over=was.state[3] is None)
            self._nobody_lost_in_error(agent)
            # What it learns in a round counts from the next one on.
            unfit = (p for p in head.state.roster if p.report is not None and p.report.unfit)
            self.cordoned[control.index] = {p.place.node for p in unfit if not p.assignment}

    def _leads(self, agent: Agent, effect: effects.LeadStagers) -> None:
        """Check that each head leads the stagers in a term of its own, and never in a lower one. Of
        the starts of the first agent, which have the same term, only one lives.
        """
        leader = self.leaders.setdefault(effect.term, agent.index)
        self._require(leader == agent.index, agent, "leads stagers in the term of another")
        last = self.led.get(agent.name, effect).term
        self._require(effect.term >= last, agent, "leads stagers in a lower term than before")
        self.led[agent.name] = effect

    def _hangs(self, agent: Agent, current: Round) -> None:
        """Check that a round that is ended for a hang has one, and that no other rank is blamed."""
        for failure in current.failures.values():
            if failure.culprit is not Culprit.HANG or current.number in self.hung:
                continue
            part = next(p.assignment for p in current.participants if p.assignment is not None)
            world = self.sim.training.rounds.get(part.store_port)
            hangs = world is not None and world.still_since < self.sim.now
            rests = world is not None and world.still_until < math.inf
            # Word of it is on its way for as long as an agent may be silent.
            late = (
                world is not None
                and self.sim.now - world.awake_since <= self.sim.plan.job.timing.loss
            )
            fair = late or (hangs and not rests)
            self._require(fair, agent, "calls workers hung that do something")
            reports = [p.report for p in current.participants if p.report is not None]
            answers = [r.answer(Evidence) for r in reports]
            found = [answer for answer in answers if answer is not None]
            answered = {state.rank for evidence in found for state in evidence.ranks}
            right = world is not None and failure.rank == world.culprit
            unknown = world is None or world.culprit not in answered
            unknown |= failure.rank == NO_RANK and len(found) < len(reports)
            self._require(right or unknown, agent, f"blames rank {failure.rank} for a hang")
            self.lost.add(current.number)
            self.hung.add(current.number)

    def _observe(self, agent: Agent, fact: Fact) -> None:
        """Whatever happens, there are words for it."""
        console, notifications = self.observers.setdefault(
            agent.index, (Console(), Notifications())
        )
        self._require(all(console.lines(fact)), agent, f"has no words for {fact}")
        notifications.note(fact, self.sim.now)
        if isinstance(fact, StragglerNamed):
            self._names_straggler(agent, fact.host)

    def _names_straggler(self, agent: Agent, named: str) -> None:
        slow = self.sim.plan.slow_agent
        host = self.sim.plan.job.places[slow].host if slow >= 0 else None
        self._require(named == host, agent, f"calls {named} a straggler, and {host} is one")
        self.stragglers.add(named)

    def concludes(self, agent: Agent, verdict: Verdict) -> None:
        """Check that an agent that leaves does what comes after the end."""
        wanted = self.sim.plan.job.requeueing
        is_requeued = verdict.sequel is Sequel.REQUEUE
        self._require(
            not is_requeued or ENDS[verdict.origin].kind in wanted.on,
            agent,
            f"is requeued: {verdict}",
        )
        if wanted.on and not wanted.is_chain:
            matches = (verdict.code == EXIT_SAVED) == is_requeued
            self._require(matches, agent, f"leaves with a code that says something else: {verdict}")
        if is_requeued and agent.control.leads:
            # What is left by then, Slurm has killed in the meantime. Of two heads that could not
            # hear each other, each asks: Slurm does it once.
            now, apart = self.sim.now, self.sim.plan.kinds & APART
            head = agent.control.head
            term = head.state.lease.tenure if apart and head is not None else 0
            again = now < self.requeued_at.get(term, -math.inf) + 1.0
            self._require(not again, agent, "requeues the job once more")
            self.requeued_at[term] = now

    def takes(self, worker: Worker, number: int, step: int) -> None:
        """Check the notice that a worker takes before this step."""
        if not self._steps.together[number]:
            return
        agent = self.sim.agents[worker.agent]
        for other in self._paces(worker):
            before = other.taken.get(number)
            late = before not in (None, step)
            self._require(not late, agent, f"takes notice {number} at {step}, another at {before}")
            was_offered = other.number >= number  # not if it had ended before
            passed = before is None and other.made >= step and was_offered
            self._require(not passed, agent, f"takes notice {number} at {step}, another has not")
        self.noticed += 1

    def steps(self, worker: Worker, step: int) -> None:
        """Check a step that a worker makes."""
        mine = self._steps.paces[worker]
        for other in self._paces(worker):
            for number, at in other.taken.items():
                missed = at <= step and number not in mine.taken and self._steps.together[number]
                agent = self.sim.agents[worker.agent]
                self._require(not missed, agent, f"passes {step} without notice {number} of {at}")

    @property
    def _steps(self) -> Steps:
        assert self.sim.steps is not None, "there are steps"
        return self.sim.steps

    def _paces(self, worker: Worker) -> list[Pace]:
        """Return the paces of all workers of its round that made steps when notice was given."""
        paces = (self._steps.paces[w] for w in worker.world.workers)
        return [p for p in paces if p.begun and p.at]

    def is_due(self) -> None:
        """Check that no worker is left when Slurm ends the job, unless something was in the way."""
        plan = self.sim.plan
        sudden = any(end - at < SUDDEN + plan.job.timing.ask_end for at, end in plan.ends[1:])
        sudden |= self.sim.now < self.sim.end_known_at + SUDDEN
        calm = plan.kinds <= {Kind.USR1} and not (plan.drop or plan.slow or sudden)
        living = [w for w in self.sim.training.living() if not w.unkillable]
        all_met = self.sim.now > max(plan.starts) + 2.0
        if calm and living and all_met:
            late = self.sim.now + 1.0
            self.sim.after(1.0, lambda: self._none_left(living, late))

    def _none_left(self, workers: list[Worker], now: float) -> None:
        left = [w for w in workers if w.alive]
        agent = self.sim.agents[left[0].agent] if left else self.sim.agents[0]
        self._require(not left, agent, f"leaves {left} to Slurm at {now:.1f}")

    def continues(self, agent: Agent, number: int) -> None:
        """Check that no other round runs when an agent's workers continue after a halt."""
        running = self._running_but(number)
        self._require(not running, agent, f"goes on with round {number} while {running} run")

    def _running_but(self, number: int) -> list[Worker]:
        """The workers of other rounds. The fork server cannot help those that survive a SIGKILL."""
        living = [w for w in self.sim.training.living() if w.round != number and not w.unkillable]
        return [w for w in living if not self.sim.agents[w.agent].is_halted]

    def begins(self, agent: Agent, part: Assignment) -> None:
        """Check the round that the fork server of an agent starts."""
        plan, index = self.sim.plan, agent.control.index
        # It cannot know of agents from which it has been cut off ever since.
        known = [i for i in self.done if not self.sim.network.is_cut(i, agent.index)]
        self._require(not known, agent, f"starts round {part.round} after the job's success")
        running = self._running_but(part.round)
        self._require(not running, agent, f"starts round {part.round} while {running} run")
        self._require(not agent.living_workers(), agent, "starts over living workers")
        heads = (h for h in self._heads() if h.state.roster[index].assignment == part)
        head = next(heads, None)
        if head is None:
            return  # it was held meanwhile, and is about to hear that the round is over
        self._notice_new_job(agent, head)
        newest = max(self.started, default=(0, 0))
        others = any(a.living and a is not agent for a in self.sim.agents)
        can_know = others and not self.ended_apart  # else nobody is left to send it orders
        old = (head.state.orders.term, part.round) < newest and can_know
        self._require(not old, agent, "starts an old round")
        starters = self.started.setdefault((head.state.orders.term, part.round), set())
        self._require(agent.index not in starters, agent, f"starts round {part.round} twice")
        starters.add(agent.index)
        facts = (
            part.restarts,
            part.world_size,
            part.group_world_size,
            part.store_address,
            part.store_port,
            part.checkpoint,
            part.stages,
        )
        # A head that is cut off with half of the nodes may have had rounds of the same number.
        agreed = self.facts.setdefault((part.round, head.state.orders.term), facts)
        self._require(facts == agreed, agent, f"has {facts} for {agreed}")
        # Rounds that cost no restart.
        free = len(plan.unfit) + len(self.asked)
        relieves = plan.slow_agent >= 0 and plan.job.replaces_stragglers
        steady = plan.survived and plan.job.grow is Grow.NEVER and not relieves
        begun = part.round - plan.job.first_round
        least = begun - free if steady else 0
        self._require(least <= part.restarts <= begun, agent, "miscounts its restarts")
        taking = [p.place for p in head.state.roster if p.assignment is not None]
        nprocs = {p.place.index: plan.nprocs[self._at(p).index] for p in head.state.roster}
        groups = list(dict.fromkeys(p.node for p in taking))
        groups = sorted(groups, key=head.state.groups.index)
        expected = _seat(taking, groups, nprocs, index)
        seat = (
            part.first_rank,
            part.nproc,
            part.world_size,
            part.first_local_rank,
            part.local_world_size,
            part.group_rank,
            part.group_world_size,
        )
        self._require(seat == expected, agent, f"sits on {seat} instead of {expected}")
        sound = {p.node for p in taking}.isdisjoint(self.cordoned.get(head.me, ()))
        self._require(sound, agent, "runs with a node that was cordoned")
        self._shares(agent, part)
        host = min(taking, key=lambda p: (groups.index(p.node), p.index)).index
        self._require(part.hosts_store == (index == host), agent, "hosts the store in error")
        if index == host:
            self._require(part.store_port == agent.port, agent, "has a stale store")
            self._require(part.first_rank == 0, agent, "hosts the store without rank 0")
        complete = {f.path for f in self.sim.training.directory if f.complete}
        chosen = part.checkpoint
        self._require(not chosen or chosen in complete, agent, f"resumes from {chosen}")
        seen = not chosen or self.sim.training.sees(agent.index, chosen)
        if part.stages:
            self._require(not agent.stage.has_left, agent, "saves in memory that is gone")
            seen = not chosen or self.sim.training.is_held(agent.control.index, chosen)
        self._require(seen, agent, f"resumes from {chosen}, which it does not see yet")

    def _notice_new_job(self, agent: Agent, head: Head) -> None:
        """Require that nobody else runs when a restarted first agent begins a new job, as it does
        without Slurm.
        """
        first = self._at(head.state.roster[HEAD])
        if first.name == self.first or self.sim.plan.job.elects:
            return
        if self.started:
            running = self._running_but(-1)
            self._require(not running, agent, f"begins the job anew while {running} run")
        self.first = first.name
        self.facts, self.started, self.begun = {}, {}, {}

    def _budget(self, agent: Agent, *, took_over: bool) -> None:
        """Only a checkpoint that the job has not resumed from yet gives restarts back, and a new
        head knows that of every round whose orders it had."""
        head = agent.control.head
        assert head is not None
        most, budget = self.sim.plan.job.max_restarts, head.state.budget
        key = (head.state.orders.term, head.state.round)
        is_known = head.stage is not Stage.RUNNING or key in self.begun
        if is_known and not took_over:
            return
        last, _, before, newest = next(reversed(self.begun.values()), (0, 0, 0, ""))
        if took_over:
            mine = [r for key, r in self.begun.items() if agent.index in self.started.get(key, ())]
            known, given_back, _, _ = mine[-1] if mine else (0, 0, 0, "")
            given = budget.total - budget.used
            what = f"leads with {budget.used} of {budget.total} restarts since progress"
            self._require(known <= budget.total, agent, f"{what}, but knew of {known}")
            self._require(given_back <= given <= before, agent, f"{what}: {given_back} to {before}")
        part = next((p.assignment for p in head.state.roster if p.assignment is not None), None)
        if is_known or part is None:
            return
        if part.checkpoint not in ("", newest):
            before = min(last, part.restarts)
        self._require(part.restarts - before <= most, agent, "restarts beyond the budget")
        given_back = part.restarts - budget.used
        what = f"gives restarts back for {part.checkpoint or 'nothing'}"
        self._require(given_back <= before, agent, what)
        self.begun[key] = (part.restarts, given_back, before, part.checkpoint or newest)

    def _heads(self) -> list[Head]:
        return [a.control.head for a in self.sim.agents if a.control.head is not None]

    def _shares(self, agent: Agent, part: Assignment) -> None:
        """Require that each worker has as many GPUs of this agent as it should, and knows which."""
        job, seen = self.sim.plan.job, self.sim.plan.gpus[agent.index]
        of = part.shares.of
        self._require(len(of) == (part.nproc if seen else 0), agent, f"has {part.shares}")
        enough = len(seen) >= job.gpus_per_worker
        for offset, share in enumerate(of):
            there = all(0 <= gpu < len(seen) for gpu in share.gpus)
            size = job.gpus_per_worker if enough else 0
            self._require(there and len(share.gpus) == size, agent, f"gives {share}")
            local = part.first_local_rank + offset
            plain = share.gpus == (local,) and share.sharers == 1 and share.leads
            known = part.shares.isolated or not enough or plain or job.gpus_per_worker > 1
            self._require(known, agent, f"hides {share} from local rank {local}")

    def _patient(self, agent: Agent) -> None:
        """Require that only workers that save are left at the end of the grace of a lost round."""
        plan = self.sim.plan
        long_ago = self.sim.now - plan.job.timing.stuck - 1.0
        idle = [w for w in agent.living_workers() if not w.saving and w.idle_since < long_ago]
        if plan.survived and plan.kinds.isdisjoint((Kind.PAUSE, Kind.SUSPEND)):
            self._require(not idle, agent, f"has waited for {idle} in vain")

    def _nobody_lost_in_error(self, agent: Agent) -> None:
        head = agent.control.head
        if head is None or not head.state.lease.holds(agent.clock):
            return
        for peer in head.state.roster:
            if not peer.is_lost:
                continue
            other = self._at(peer)
            index, there = other.index, other.living and other.has_heard
            if peer.report is None and not self.sim.plan.numbered:
                continue  # nobody has had this place yet
            if head.state.orders.term and peer.report is None:
                continue  # it has not found its new head yet, or begins only now
            is_last = peer.report is not None and peer.report.round < head.state.round
            if head.state.orders.term and is_last and not peer.can_come_back:
                continue  # it has just found it, and is not done with the last round
            plan = self.sim.plan
            disturbed = not self.sim.network.disturbed.isdisjoint((index, agent.index))
            error = there and not disturbed and not (plan.drop or plan.slow)
            self._require(not error, agent, f"gave agent {index} up in error")

    def _exits(self, agent: Agent, reason: str) -> None:
        sim = self.sim
        left = [w for w in agent.living_workers() if not w.unkillable]
        self._require(not left, agent, f"leaves while its own {left} run")
        given_up = reason.startswith("the head on")
        head = agent.control.head
        if head is not None and any(p.is_lost and self._at(p).living for p in head.state.roster):
            self.ended_apart = True  # they will find no head, and may continue by themselves
        late = given_up and any(not without for _, without in self.left)
        if not late:
            self.left.append((agent.index, given_up))
        lossy = sim.plan.drop or sim.plan.slow or sim.plan.losses
        if lossy or not agent.has_heard:
            return
        self._require(not given_up, agent, f"gave a living head up: {reason}")
        for other in sim.agents:
            running = [w for w in other.living_workers() if not w.unkillable]
            self._require(not running, agent, f"leaves while {running} run")

    def strikes(self, agent: Agent) -> None:
        """Record that a fault is about to strike this agent."""
        head = agent.control.head
        ending = head is not None and head.stage in (Stage.ENDING, Stage.ENDED)
        self.ended_apart = self.ended_apart or ending or any(not a.living for a in self.sim.agents)

    # The end

    def settled(self) -> None:
        sim = self.sim
        for agent in sim.agents:
            self._require(not agent.living, agent, f"has not left after {sim.now:.0f} s")
        if sim.plan.orderly and not self.ended_apart:
            lost = {sim.plan.job.places[f.agent].node for f in sim.plan.faults}
            for agent in sim.agents:
                left = sim.plan.job.places[agent.index].node not in lost
                good = agent.verdict is not None and self._went_well(agent.verdict)
                self._require(good or not left, agent, f"does not continue: {agent.verdict}")
        # Who never met a head or was cut off can only say that.
        apart = sim.network.disturbed
        lossy = sim.plan.drop or sim.plan.slow or apart
        together = [
            a
            for a in sim.agents
            if a.verdict and a.index not in apart and a.has_heard
            if a.index in {index for index, _ in self.left}
            if not (lossy and a.ended_alone)
        ]
        if self.ended_apart or not together:
            return
        codes = {a.verdict.code for a in together if a.verdict}
        verdicts = {a.index: a.verdict for a in together}
        self._require(len(codes) == 1, together[0], f"leaves with others: {verdicts}")
        if codes == {0}:
            worlds = sim.training.rounds.values()  # a half that was cut off may have had one later
            done = any(
                len(w.exits) == w.world_size and all(code == 0 for code, _, _ in w.exits.values())
                for w in worlds
            )
            last = [w.exits for w in worlds][-1]
            self._require(done, together[0], f"calls {last} a success")
        if sim.plan.survived:
            self._fair(sim.agents[0])

    def _went_well(self, verdict: Verdict) -> bool:
        """Return whether all workers have ended with 0. If they have saved shortly before, after a
        signal, they count as not finished.
        """
        signalled = self.sim.plan.saves and Kind.USR1 in self.sim.plan.kinds
        return verdict.code == 0 or (signalled and ENDS[verdict.origin].kind is EndKind.TIME_LIMIT)

    def _fair(self, head: Agent) -> None:
        """Check that, if only workers and fork servers failed, their number decides the outcome.

        One that was killed when there was nothing to lose costs no restart.
        """
        plan, verdict = self.sim.plan, head.verdict
        assert verdict is not None
        budget, most = plan.job.max_restarts, plan.crashes + plan.kills
        well = self._went_well(verdict)
        # A round that a node was lost in, or that was ended for one, may have had a crash as well.
        least = plan.crashes - len(plan.unfit) - len(self.grown) - len(self.asked)
        done = well and least <= verdict.restarts <= most
        spent = not well and verdict.restarts == budget and verdict.cause is not None
        fair = (done and least <= budget) or (spent and most > budget)
        if plan.saves and budget:  # what was spent is given back with every new checkpoint
            spent = not well and verdict.restarts >= budget and verdict.cause is not None
            fair = done or (spent and most > budget)
        if verdict.origin in (Origin.NODE_LOST, Origin.NODE_UNFIT):
            due = plan.job.timing.last_call
            if not plan.job.timing.wait:  # for nobody, once the job has begun
                due = min([due, *(f.at for f in plan.faults if f.kind is Kind.UNFIT)])
            late = sum(start > due for start in plan.starts)
            fair, spent = len(plan.unfit) + late > plan.spare, False
        count = f"{plan.crashes} crashes and {plan.kills} killed fork servers"
        self._require(fair, head, f"ends with {verdict} after {count}")
        if not spent:
            return
        if plan.slow or plan.drop or plan.kinds:
            return  # reports may come too late to distinguish causes from consequences
        assert verdict.cause is not None
        (exits,) = (
            r.exits for r in self.sim.training.rounds.values() if r.number == verdict.cause.round
        )
        first = min(at for code, _, at in exits.values() if code)
        blamed = exits[verdict.cause.rank][2]
        self._require(
            blamed <= first + 2 * plan.delay + 0.005,
            head,
            f"blames rank {verdict.cause.rank}, {blamed - first:.3f} s after the first failure",
        )

    def _require(self, holds: bool, agent: Agent, what: str) -> None:
        if not holds:
            raise BrokenLawError(
                f"at {self.sim.now:.3f} agent {agent.index} on {agent.host} {what}"
            )


def _is_unknown(agent: Agent, event: events.Received) -> bool:
    """Return whether a head does not know this start of an agent: it counts the last as alive."""
    if agent.control.head is None or not isinstance(event.message, Report):
        return False
    roster = agent.control.head.state.roster
    if event.sender >= len(roster):
        return True  # it has no place, and is sent its place again
    known = roster[event.sender].report
    return known is None or known.incarnation != event.message.incarnation


def _is_hint(effect: effects.Effect) -> bool:
    return isinstance(effect, effects.Send) and isinstance(effect.message, Hint)


def _state(agent: Agent) -> tuple[object, ...]:
    """(phase, round, verdict, and of the head: stage, round, restarts, verdict)"""
    member, head = agent.control.member, agent.control.head
    own = (member.phase, member.round, member.verdict)
    if head is None:
        return (*own, None, -1, 0, None)
    return (*own, head.stage, head.state.round, head.state.budget.total, head.state.end.verdict)


def _seat(
    places: list[Place], groups: list[int], nprocs: dict[int, int], index: int
) -> tuple[int, ...]:
    """Return the ranks of an agent by the order of the nodes, counted one worker at a time."""
    workers = [
        (place.node, place.index)
        for node in groups
        for place in places
        if place.node == node
        for _ in range(nprocs[place.index])
    ]
    mine = next((place.node, index) for place in places if place.index == index)
    nodes = list(dict.fromkeys(node for node, _ in workers))
    local = [entry for entry in workers if entry[0] == mine[0]]
    return (
        workers.index(mine),
        nprocs[index],
        len(workers),
        local.index(mine),
        len(local),
        nodes.index(mine[0]),
        len(nodes),
    )
