"""The ledger of a simulated job, and the truth: on what its seats have spent their time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING

from sim_checker import BrokenLawError
from sim_plan import Kind

from hpclaunch.core.head.round_shares import Holder, seats_of
from hpclaunch.core.protocol.effects import Effect, Record
from hpclaunch.core.protocol.facts import Category
from hpclaunch.observe.launches import Launch, account
from hpclaunch.observe.ledger import DatedFact, ledger_of

if TYPE_CHECKING:
    from cluster_sim import Simulation
    from sim_agent import Agent
    from sim_training import Worker

BEFORE = 3  # of what workers spend their time on, what comes before the first step,
LONGEST = 0.05  # each for no longer than this part of the work
REPORTED = 2.1  # seconds between two reports of an agent of many, in which nothing else happens
HEARD = 1.0  # seconds until the head has heard how long nothing has moved
PERIOD = 30.0  # seconds between two times that a head records what the seats do
TRAINED = (Category.TRAINING, Category.REDONE, Category.SAVING)


def spent_by(worker: Worker, sim: Simulation) -> tuple[float, ...]:
    """Return a worker's seconds of imports, the rendezvous, loading, training and saving."""
    left = min(sim.now, worker.ended_at) - worker.born
    found = []
    for most in _before_steps(sim.plan.seed, worker.round, worker.rank, sim.plan.work):
        found.append(min(left, most))
        left -= found[-1]
    saved = min(left, worker.saved)
    return (*found, left - saved, saved)


@lru_cache(maxsize=1024)
def _before_steps(seed: int, number: int, rank: int, work: float) -> tuple[float, ...]:
    """Return the seconds of a worker's imports, its rendezvous and its loading."""
    rng = Random(f"{seed} {number} {rank} before its steps")
    return tuple(rng.uniform(0.0, LONGEST * work) for _ in range(BEFORE))


class LedgerCheck:
    """The facts that each start of an agent has recorded."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self._runs: dict[Agent, list[DatedFact]] = {}

    def note(self, agent: Agent, effects: Sequence[Effect]) -> None:
        """Record facts as the loop does, after each event."""
        run, now = self._runs.setdefault(agent, []), self.sim.now
        run += [(now - e.ago, e.fact) for e in effects if isinstance(e, Record)]
        due = not run or now >= run[-1][0] + PERIOD or agent.control.exited
        if due and (use := agent.control.seat_use(agent.clock)) is not None:
            run.append((now, use))

    def settled(self) -> None:
        """Check that all seconds are counted once, and that training is training."""
        launch = ledger_of(self._runs.values()).launch("sim")
        if launch is None:
            return
        self._is_whole(launch)
        found = account([launch])
        whole = found.seats * (found.end - found.begin)
        lost = found.total - whole
        alike = len({round(entry.seats, 6) for entry in launch.entries}) == 1
        self._require(not alike or abs(lost) <= 0.01 * whole, f"{found.total:.2f} of {whole:.2f}")
        self._require(found.total <= 1.01 * whole, f"{found.total:.2f} of {whole:.2f}")

        reported = sum(found.spent.get(category, 0.0) for category in TRAINED)
        least = reported
        if not found.steps_seen:  # loading and training are not distinguished then
            least -= found.spent.get(Category.TRAINING, 0.0)
        true, most = self.trained(stopped=False), self.trained(stopped=True)
        more, less = least - most, true - reported
        rounds = len(self.sim.training.rounds)
        if self._knows_all:
            # Seconds until something is known. What stubborn workers do after they were stopped is
            # not always told apart from what others of their agent did before.
            known = REPORTED if self.sim.plan.hangs else 0.25 if self.sim.plan.stubborn else 0.1
            allowed = 0.01 * whole + known * found.seats * rounds
            self._require(
                max(more, less) <= allowed, f"{reported:.2f} trained of {true:.2f} ({whole:.2f})"
            )
        if self._knows_of_losses:
            allowed = 0.01 * whole + (0.1 + self._guessed) * found.seats * rounds
            self._require(more <= allowed, f"{reported:.2f} trained of {true:.2f} ({whole:.2f})")

    @property
    def _knows_all(self) -> bool:
        """Whether nothing hinders the agents, or takes their data with it."""
        plan = self.sim.plan
        quiet = plan.kinds <= {Kind.USR1, Kind.BLIP} and not (plan.drop or plan.slow)
        # Workers that do not wait for one that hangs continue, and yet appear to make no progress.
        return quiet and (plan.coupled or not (plan.crashes or plan.hangs))

    @property
    def _knows_of_losses(self) -> bool:
        """Whether only losses hide training: a lost agent takes its data with it, so that training
        may count as something else, but nothing else may count as training.
        """
        plan = self.sim.plan
        plain = {Kind.USR1, Kind.BLIP, Kind.KILL_FORKSERVER, Kind.KILL_AGENT, Kind.UNFIT}
        return plan.kinds <= plain and plan.coupled and not (plan.drop or plan.slow or plan.hangs)

    @property
    def _guessed(self) -> float:
        """Seconds for each seat by which the workers of a lost head may have begun to train later
        than the others, whose activity is assumed for them.
        """
        plan = self.sim.plan
        return BEFORE * LONGEST * plan.work if Kind.KILL_AGENT in plan.kinds else 0.0

    def trained(self, *, stopped: bool) -> float:
        """Seat seconds in which workers did train, until something went wrong in their round: also
        after they were asked to stop, and in a hang that nobody could find by then, or not.
        """
        plan, found = self.sim.plan, 0.0
        nodes = [place.node for place in plan.job.places]
        seats = seats_of([*map(Holder, nodes, plan.gpus, plan.nprocs)])
        for world in self.sim.training.rounds.values():
            failed = (at for code, _, at in world.exits.values() if code)
            last = max((at for _, _, at in world.exits.values()), default=self.sim.now)
            last = min([last, *(worker.stopped_at for worker in world.workers)])
            found_out = not stopped or last >= world.still_since + plan.job.timing.hang + HEARD
            end = min([*failed, world.still_since if plan.coupled and found_out else math.inf])
            if plan.coupled and not stopped and last < world.awake_since + HEARD:
                end = min(end, world.rested_since)  # nobody has heard that the rest is over
            for worker in world.workers:
                until = min(self.sim.now, worker.ended_at)
                if not stopped:
                    until = min(until, worker.stopped_at)
                if worker.rank == world.culprit:
                    until = min(until, world.still_since)
                before = worker.born + sum(spent_by(worker, self.sim)[:BEFORE])
                mine = seats[worker.agent] / plan.nprocs[worker.agent]
                found += max(0.0, min(until, end) - before) * mine
        return found

    def _is_whole(self, launch: Launch) -> None:
        at = launch.begin
        for entry in launch.entries:
            self._require(abs(entry.begin - at) < 1e-6, f"a gap at {at:.3f} before {entry}")
            self._require(entry.end >= entry.begin, f"goes back: {entry}")
            spent = sum(entry.spent.values())
            whole = (entry.end - entry.begin) * entry.seats
            same = abs(spent - whole) < 1e-6 + 1e-3 * whole
            self._require(same, f"{spent} of {whole}: {entry}")
            least = min(entry.spent.values(), default=0.0)
            self._require(least > -1e-6, f"less than nothing: {entry}")
            at = entry.end

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise BrokenLawError(f"at {self.sim.now:.3f} the ledger: {what}")
