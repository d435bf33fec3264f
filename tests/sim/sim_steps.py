"""The steps of simulated workers, and the notices that they take before one of them.

A fork server's messages to its workers take effect at once, in the order of its requests; a
worker's own actions take time, and make no progress while it is halted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from hpclaunch.core.protocol.model import NoticeAnswer, StepNotice

if TYPE_CHECKING:
    from cluster_sim import Simulation
    from sim_training import Round, Worker


@dataclass(eq=False, slots=True)
class Pace:
    """The progress of a worker, and the notices that its fork server has given it."""

    trains: bool  # it makes steps
    begun: int = 0
    made: int = 0
    at: float = math.inf  # the step before which it takes the notice
    number: int = 0  # of this notice
    given: int = 0
    taken: dict[int, int] = field(default_factory=dict)  # by number: before which step
    waits: bool = False  # at that step, until it is given or withdrawn


class Steps:
    """The steps of all workers of a plan with notices."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.rng = Random(f"{sim.plan.seed} steps")
        self.paces: dict[Worker, Pace] = {}
        self.together: dict[int, bool] = {}  # by number: whether all take it before one step

    def join(self, worker: Worker) -> None:
        """A worker runs. Where they meet in collectives, nobody begins before all are there."""
        plan = self.sim.plan
        world = worker.world
        self.paces[worker] = Pace(trains=self.rng.random() < plan.trains)
        met = len(world.workers) == world.world_size
        if plan.coupled and not met:
            return
        for each in world.workers if plan.coupled else [worker]:
            self._later(each, lambda each=each: self._begin(each))

    def _later(self, worker: Worker, action: Callable[[], None], most: float = 0.0) -> None:
        def act() -> None:
            if worker.alive:
                action()

        wait = self.rng.uniform(0.0, most or self.sim.plan.step)
        self.sim.training.in_time(wait, worker, act)

    def _begin(self, worker: Worker) -> None:
        """The next step, if the others have made the last one."""
        pace = self.paces[worker]
        if not pace.trains or pace.begun > pace.made:
            return
        pace.begun += 1
        self._make(worker)

    def _of(self, world: Round) -> list[Pace]:
        return [p for w in world.workers if (p := self.paces[w]).trains]

    def _make(self, worker: Worker) -> None:
        """The step that has begun: a notice comes before it."""
        pace = self.paces[worker]
        if pace.begun >= pace.at and pace.number not in pace.taken:
            pace.waits = pace.given != pace.number
            if pace.waits:
                return
            pace.taken[pace.number] = pace.begun
            self.sim.checker.takes(worker, pace.number, pace.begun)
            self.sim.training.heed(worker)
        pace.made = pace.begun
        self.sim.checker.steps(worker, pace.made)
        others = [worker]
        if self.sim.plan.coupled:
            paces = self._of(worker.world)
            others = worker.world.workers if all(p.made >= pace.made for p in paces) else []
        for each in others:
            self._later(each, lambda each=each: self._begin(each))

    # What a fork server does

    def offer(self, workers: list[Worker], notice: StepNotice) -> NoticeAnswer:
        paces = [self.paces[w] for w in workers]
        counts = [p.begun for p in paces if p.trains]
        steps = (min(counts), max(counts)) if counts else ()
        late = (p for p in paces if p.trains and p.number and p.given == p.number)
        if any(p.number not in p.taken for p in late):
            return NoticeAnswer(notice.number, accepted=False, busy=True, steps=steps)
        accepted = not notice.step or all(count < notice.step for count in counts)
        self.together[notice.number] = bool(notice.step)
        for pace in paces:
            pace.number = notice.number
            pace.at = notice.step if accepted else math.inf
        self._wake(workers)
        return NoticeAnswer(notice.number, accepted=accepted, steps=steps)

    def withdraw(self, workers: list[Worker]) -> None:
        for pace in (self.paces[w] for w in workers):
            if pace.given != pace.number:
                pace.at = math.inf
        self._wake(workers)

    def give(self, workers: list[Worker], number: int) -> None:
        for pace in (self.paces[w] for w in workers):
            pace.given = number
            pace.at = pace.at if pace.trains else 0
        self._wake(workers)

    def _wake(self, workers: list[Worker]) -> None:
        for worker in workers:
            if self.paces[worker].waits:
                self.paces[worker].waits = False
                self._later(worker, lambda worker=worker: self._make(worker), most=0.01)

    def all_taken(self, workers: list[Worker], number: int) -> bool:
        return all(number in p.taken for p in map(self.paces.__getitem__, workers) if p.begun)
