"""A whole cluster in one process and no time at all: real cores, simulated everything else.

    python tests/sim/replay.py SEED        the transcript of one run
    python tests/sim/replay.py --seeds N   many runs

The same seed is the same run, to the last message.
"""

from __future__ import annotations

import heapq
import itertools
import math
import signal
from collections.abc import Callable, Collection
from random import Random

from sim_agent import Agent
from sim_checker import BrokenLawError, Checker
from sim_ledger import LedgerCheck
from sim_network import Network
from sim_plan import DISRUPTIONS, UNEVEN, Fault, Kind, Plan, draw
from sim_steps import Steps
from sim_training import Training

from hpclaunch.core.protocol import effects, events
from hpclaunch.core.protocol.job_state import JobState
from hpclaunch.observe.console import Console


class Simulation:
    """`run` raises BrokenLawError when a law is broken; `transcript` is kept if asked for."""

    def __init__(self, plan: Plan, *, record: bool = False) -> None:
        self.plan = plan
        self.rng = Random(f"{plan.seed} on the way")
        self.now = 0.0
        self.transcript: list[str] = []
        self._record = record
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._port = 40000
        self.job_state = JobState.RUNNING  # as Slurm says it
        self.ends_at: float | None = None  # when Slurm ends the job
        self.end_known_at = math.inf  # when an agent has asked Slurm since, and got an answer
        self.checker = Checker(self)
        self.ledger = LedgerCheck(self)
        self.training = Training(self)
        self.steps = Steps(self) if plan.step else None
        self.network = Network(self)
        self.agents = [Agent(self, index) for index in range(len(plan.starts))]

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + seconds, self._count, action))

    def fresh_port(self) -> int:
        self._port += 1
        return self._port

    def run(self) -> None:
        for agent, start in zip(self.agents, self.plan.starts, strict=True):
            self.after(start, agent.start)
        for fault in self.plan.faults:
            # A fault of a process that is not there yet strikes once it is.
            at = max(fault.at, self.plan.starts[fault.agent] + 0.0001)
            self.after(at, lambda fault=fault: self._strike(fault))
        for at, index in self.plan.refusals:
            if at:
                self.after(at, lambda index=index: self.agents[index].stage.refuse())
        for at, index in self.plan.stagers_end:
            self.after(at, lambda index=index: self.agents[index].stage.kill())
        for number, (at, _) in enumerate(self.plan.ends):
            self.after(at, lambda number=number: self._decide(number))
        bound = self.plan.bound
        while self._queue and self._queue[0][0] < bound:
            self.now, _, action = heapq.heappop(self._queue)
            action()
            if not any(a.living for a in self.agents) and self.now > max(self.plan.starts):
                break
        self.checker.settled()
        self.ledger.settled()

    def _decide(self, number: int) -> None:
        """Let Slurm set another time for the end of the job."""
        self.ends_at, self.end_known_at = self.plan.ends[number][1], math.inf
        is_last = number == len(self.plan.ends) - 1
        if is_last and (self.plan.preempts or self.plan.requeues):
            self.job_state = JobState.PREEMPTED if self.plan.preempts else JobState.REQUEUED
            self._terminate()
        self.after(max(0.0, self.ends_at - self.now), lambda: self._end(number))

    def _end(self, number: int) -> None:
        if self.ends_at == self.plan.ends[number][1]:
            self.checker.is_due()
            if self.job_state is not JobState.REQUEUED:
                self.job_state = JobState.OVER
            self._terminate()

    def _terminate(self) -> None:
        for agent in self.agents:
            agent.signal(signal.SIGTERM)

    def _strike(self, fault: Fault) -> None:
        agent = self.agents[fault.agent]
        if not agent.living:
            return
        if fault.kind in DISRUPTIONS:
            self.checker.strikes(agent)
        if self._record:
            lasting = (
                f" for {fault.lasts:.1f} s"
                if fault.kind in (Kind.PAUSE, Kind.SUSPEND, *DISRUPTIONS)
                else ""
            )
            self.say(f"agent {fault.agent}: {fault.kind.name}{lasting}")
        match fault.kind:
            case Kind.PAUSE:
                agent.pause(fault.lasts)
            case Kind.SUSPEND:
                self._suspend({place.node for place in self.plan.job.places}, fault.lasts)
            case Kind.FREEZE:
                self._suspend({self.plan.job.places[fault.agent].node}, fault.lasts)
            case Kind.STALL:
                self.network.disturbed.add(fault.agent)
                agent.pause(fault.lasts)
            case Kind.BLIP:
                for pair in sorted(self.network.up):
                    if fault.agent in pair:
                        self.network.blip(pair)
            case Kind.USR1:
                agent.signal(signal.SIGUSR1)
            case Kind.SIGTERM:
                agent.signal(signal.SIGTERM)
            case Kind.SIGINT:
                agent.signal(signal.SIGINT)
                self.after(fault.lasts, lambda: agent.signal(signal.SIGINT))
            case Kind.SCANCEL:
                self.job_state = JobState.OVER
                self._terminate()
            case Kind.TROUBLE:
                agent.trouble()
            case Kind.SEARCH:
                self.network.disturbed.add(fault.agent)
                agent.searches = False
            case Kind.KILL_AGENT:
                self.network.disturbed.add(fault.agent)
                agent.kill()
            case Kind.RESTART_AGENT:
                self.network.disturbed.add(fault.agent)
                agent.kill(confirmed=fault.is_proven)
                self.after(fault.lasts, lambda: self._restart(fault.agent))
            case Kind.KILL_BOTH | Kind.SWITCH_OFF:
                self.network.disturbed.add(fault.agent)
                agent.kill(confirmed=False, seen=fault.kind is Kind.KILL_BOTH)
            case Kind.PARTITION | Kind.REJECT | Kind.REJECT_ONE_WAY:
                groups: dict[int, list[int]] = {}
                for place in self.plan.job.places:
                    groups.setdefault(fault.groups[place.node], []).append(place.index)
                for one, other in itertools.combinations(groups.values(), 2):
                    if fault.kind is not Kind.PARTITION:
                        both_ways = fault.kind is Kind.REJECT
                        self.network.refuse(one, other, both_ways=both_ways)
                    self.network.separate(one, other, fault.lasts)
            case Kind.CUT:
                self.network.separate([fault.agent], range(len(self.agents)), fault.lasts)
            case Kind.MUTE:
                self.network.silence(fault.agent, fault.lasts, mute=True)
            case Kind.DEAF:
                self.network.silence(fault.agent, fault.lasts, mute=False)
            case Kind.KILL_FORKSERVER:
                if fault.phase is None:
                    agent.kill_forkserver(for_good=False)
                agent.doom = fault.phase
            case Kind.LOSE_FORKSERVER:
                agent.kill_forkserver(for_good=True)
            case Kind.UNFIT:
                agent.break_node()
            case Kind.UNKILLABLE:
                agent.make_unkillable()

    def _suspend(self, nodes: Collection[int], lasts: float) -> None:
        """Suspend these nodes one after the other, and resume them likewise."""
        begins, ends = ({n: self.rng.uniform(0.0, UNEVEN) for n in nodes} for _ in range(2))
        for place in self.plan.job.places:
            if place.node in nodes:
                agent = self.agents[place.index]
                if len(nodes) < self.plan.job.nodes:
                    self.network.disturbed.add(place.index)
                self.after(begins[place.node], agent.suspend)
                self.after(lasts + ends[place.node], agent.end_suspension)

    def _restart(self, index: int) -> None:
        self.checker.forget(index)
        self.agents[index] = Agent(self, index, starts=self.agents[index].starts)
        self.agents[index].start()

    # The transcript

    def note(self, index: int, arrow: str, value: events.Event | effects.Effect) -> None:
        if not self._record or isinstance(value, events.Tick):
            return
        if isinstance(value, events.Received):
            text = f"from {value.sender}: {value.message}"
        elif isinstance(value, effects.Send):
            text = f"to {value.to}: {value.message}"
        else:
            text = str(value)
        self.say(f"agent {index} {arrow} {text}")
        if isinstance(value, effects.Record):
            for line in Console().lines(value.fact):
                self.say(f"agent {index} says: {line}")

    def say(self, text: str) -> None:
        self.transcript.append(f"{self.now:10.4f}  {text}")


def replay(seed: int) -> tuple[Simulation, BaseException | None]:
    """The run of a seed with its transcript, and what went wrong in it, if anything."""
    sim = Simulation(draw(seed), record=True)
    try:
        sim.run()
    except Exception as e:  # an error in the core is a finding like a broken law
        return sim, e
    return sim, None


def check(seed: int) -> None:
    """Run a seed; a failure names the command that shows it."""
    try:
        Simulation(draw(seed)).run()
    except Exception as e:
        again = f"python tests/sim/replay.py {seed}"
        raise BrokenLawError(f"{type(e).__name__}: {e}\nto see it: {again}") from e
