"""The user's side of a simulated job: workers that train, save, fail, and take others along."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from hpclaunch.core.protocol.crc import checksum
from hpclaunch.core.protocol.model import Assignment

if TYPE_CHECKING:
    from cluster_sim import Simulation

# (exit code as a shell has it, signal): an exception, a bad argument, the OOM killer, a bug in C
# code, and somebody's kill.
CRASHES = ((1, 0), (3, 0), (137, 9), (139, 11), (143, 15))
FOLLOWED = ((1, 0), (134, 6))  # how a worker fails that has lost a peer
SAVING = 0.1  # seconds between the creation of a checkpoint file and its last byte


@dataclass(eq=False, slots=True)
class Worker:
    agent: int
    round: int
    world: Round
    rank: int
    ended: Callable[[Worker, int, int], None]  # (worker, code, signal), to its fork server
    mute: bool  # ignores SIGTERM
    deaf: bool  # does not notice when a peer is gone, and waits for it for ever
    saving: bool = False  # writes, since it was asked to stop
    idle_since: float = math.inf  # when it was asked to stop, or has written the last of it
    stopped_at: float = math.inf  # when it was asked to stop
    unkillable: bool = False
    alive: bool = True
    born: float = 0.0
    ended_at: float = math.inf
    saved: float = 0.0  # seconds in which it wrote checkpoints
    later: list[Callable[[], None]] = field(default_factory=list)  # once it may continue

    def __repr__(self) -> str:
        return f"rank {self.rank} of round {self.round} on agent {self.agent}"


@dataclass(eq=False, slots=True)
class Round:
    """The workers of one round. Rounds of two heads may have one number, but not one store."""

    number: int
    world_size: int
    victims: frozenset[int]  # ranks that fail by themselves
    loads: bool = False  # a broken checkpoint, at which all fail
    begun: float = 0.0
    culprit: int | None = None  # the rank that hangs, or rests, sooner or later
    still_since: float = math.inf  # since when it does, and in a coupled training all do nothing
    still_until: float = math.inf  # it only rests, and uses the CPU
    awake_since: float = -math.inf  # it did
    rested_since: float = math.inf  # and had done so since then
    workers: list[Worker] = field(default_factory=list)
    exits: dict[int, tuple[int, int, float]] = field(default_factory=dict)  # code, signal, time
    leaves: bool | None = None  # its workers do when they have notice


@dataclass(eq=False, slots=True)
class File:
    path: str
    at: float  # when it was begun
    broken: bool  # whoever loads it fails
    complete: bool = False
    seen: dict[int, float] = field(default_factory=dict)  # from when on, by agent
    held: set[int] = field(default_factory=set)  # agents that have it in memory


class Training:
    """Every worker of the job, in every round, and the directory that they save in."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.rounds: dict[int, Round] = {}  # by the port of the store, in the order of their begin
        self.directory: list[File] = []
        self._files: dict[str, File] = {}
        self._rng = Random(f"{sim.plan.seed} files")
        self._crashes_left = sim.plan.crashes
        self._hangs = Random(f"{sim.plan.seed} ranks that hang")
        self._hangs_left = sim.plan.hangs

    def living(self) -> list[Worker]:
        return [w for r in self.rounds.values() for w in r.workers if w.alive]

    def newest_complete(self, agent: int | None, avoid: Container[int]) -> File | None:
        """Return the newest that an agent sees; None: one that is in any memory, or on storage."""
        there = (f for f in reversed(self.directory) if f.complete)
        seen = (f for f in there if agent is None or self.sees(agent, f.path))
        return next((f for f in seen if checksum(f.path) not in avoid), None)

    def newest_held(self, agent: int, avoid: Container[int]) -> File | None:
        there = (f for f in reversed(self.directory) if f.complete and agent in f.held)
        return next((f for f in there if checksum(f.path) not in avoid), None)

    def is_held(self, agent: int, path: str) -> bool:
        """Return whether an agent has a checkpoint in memory."""
        return agent in self._files[path].held

    def sees(self, agent: int, path: str) -> bool:
        """Return whether an agent sees a checkpoint: each node may have a directory of its own."""
        file = self._files[path]
        if agent not in file.seen:
            never = self.sim.plan.job.local and self._rng.random() < 0.3
            lag = math.inf if never else self._rng.uniform(0.0, self.sim.plan.lag)
            file.seen[agent] = file.at + lag
        return self.sim.now >= file.seen[agent]

    def world(self, part: Assignment) -> Round:
        rng = self.sim.rng
        this = self.rounds.get(part.store_port)
        if this is None:
            victims: frozenset[int] = frozenset()
            if self._crashes_left:
                self._crashes_left -= 1
                count = min(rng.randint(1, 2), part.world_size)
                victims = frozenset(rng.sample(range(part.world_size), count))
            file = self._files.get(part.checkpoint)
            if file is not None and file.broken:
                victims = frozenset(range(part.world_size))
            this = Round(part.round, part.world_size, victims)
            this.begun = self.sim.now
            this.loads = file is not None and file.broken
            self.rounds[part.store_port] = this
        return this

    def join(self, worker: Worker) -> None:
        """Run the worker; with the last one of its world, a coupled training begins."""
        plan, rng, this = self.sim.plan, self.sim.rng, worker.world
        this.workers.append(worker)
        worker.born = self.sim.now
        if this.loads:
            self._end_after(rng.uniform(0.0, 0.3), worker, 1, 0)
        elif worker.rank in this.victims:
            code, signum = rng.choice(CRASHES)
            self._end_after(rng.uniform(0.0, plan.work), worker, code, signum)
        elif not plan.coupled:
            self._finish_after(rng.uniform(0.0, plan.work), worker)
        elif any(w.rank in this.exits for w in this.workers):
            self._follow(worker)
        if plan.saves and worker.rank == 0:
            self._save(worker)
        if self.sim.steps is not None:
            self.sim.steps.join(worker)
        met = len(this.workers) == this.world_size and not this.exits
        if plan.coupled and met and not this.victims:
            for other in this.workers:
                self._finish_after(plan.work + rng.uniform(0.0, 0.1), other)
        if len(this.workers) == this.world_size and self._hangs_left and not this.victims:
            self._hangs_left -= 1
            this.culprit = self._hangs.randrange(this.world_size)
            self.sim.after(self._hangs.uniform(0.0, plan.work), lambda: self._begin_hang(this))

    def _begin_hang(self, this: Round) -> None:
        """Let one rank do nothing any more, or use the CPU for a while."""
        if this.exits:
            return
        this.still_since = self.sim.now
        if self._hangs.random() < 0.3:
            rest = self._hangs.uniform(1.0, 5.0) * self.sim.plan.job.timing.hang
            this.still_until = self.sim.now + rest
            self.sim.after(rest, lambda: self._wake(this))

    def _wake(self, this: Round) -> None:
        if all(worker.stopped_at > self.sim.now for worker in this.workers):
            this.rested_since, this.awake_since = this.still_since, self.sim.now
            this.culprit, this.still_since = None, math.inf
        for worker in this.workers:
            self.run_deferred(worker)

    def is_still(self, worker: Worker) -> bool:
        """Return whether a worker hangs or rests, or waits for one that does."""
        this = worker.world
        concerned = self.sim.plan.coupled or worker.rank == this.culprit
        return concerned and self.sim.now >= this.still_since

    def _finish_after(self, seconds: float, worker: Worker) -> None:
        """End the worker with success, once it is not halted."""

        def finish() -> None:
            if self.is_still(worker):
                worker.later.append(finish)
            else:
                self.end(worker, 0, 0)

        self._after(seconds, worker, finish)

    def end(self, worker: Worker, code: int, signum: int) -> None:
        if not worker.alive or worker.unkillable:
            return
        worker.alive = False
        worker.ended_at = self.sim.now
        this = worker.world
        this.exits[worker.rank] = (code, signum, self.sim.now)
        worker.ended(worker, code, signum)
        if code and self.sim.plan.coupled:
            for other in this.workers:
                self._follow(other)

    def terminate(self, worker: Worker) -> None:
        """Send SIGTERM: most die of it or exit with 0, some save first, some ignore it or hang."""
        plan, rng = self.sim.plan, self.sim.rng
        worker.idle_since = self.sim.now
        worker.stopped_at = min(worker.stopped_at, self.sim.now)
        if plan.savers and rng.random() < plan.savers:
            worker.saving = True
            wait = rng.uniform(0.0, 1.5 * plan.job.timing.grace)
            self._after(wait, worker, lambda: self._saved(worker))
        elif not worker.mute:
            self._leave(worker)

    def _saved(self, worker: Worker) -> None:
        worker.saving = False
        worker.idle_since = self.sim.now
        if not worker.mute:
            self._leave(worker)

    def _leave(self, worker: Worker) -> None:
        rng = self.sim.rng
        code, signum = (143, signal.SIGTERM) if rng.random() < 0.8 else (0, 0)
        self._end_after(rng.uniform(0.0, rng.choice((0.05, 3.0))), worker, code, signum)

    def kill(self, worker: Worker) -> None:
        wait = self.sim.rng.uniform(0.0, 0.05)
        self.sim.after(wait, lambda: self.end(worker, 137, signal.SIGKILL))

    def hang(self, worker: Worker) -> None:
        """Let a worker hang in a system call for good."""
        worker.unkillable = True

        def notice() -> None:
            peers = [w for w in worker.world.workers if w.alive and not w.unkillable]
            if peers:
                self.end(self.sim.rng.choice(peers), 1, 0)
            else:
                self.sim.agents[worker.agent].signal(signal.SIGTERM)

        self.sim.after(3.0, notice)

    def lose_store(self, world: Round) -> None:
        """Workers that meet there just now fail; those that have met do not need it."""
        for worker in world.workers:
            if self.sim.rng.random() < 0.5:
                self._follow(worker)

    def vanish(self, worker: Worker) -> None:
        """End a worker with its agent or fork server: nobody is left to report it to."""
        worker.ended = lambda *_: None
        self.end(worker, 137, signal.SIGKILL)

    def _end_after(self, seconds: float, worker: Worker, code: int, signum: int) -> None:
        self._after(seconds, worker, lambda: self.end(worker, code, signum))

    def _after(self, seconds: float, worker: Worker, action: Callable[[], None]) -> None:
        """Let a worker act later: not while it is halted."""

        def act() -> None:
            if self.sim.agents[worker.agent].is_halted:
                worker.later.append(action)
            else:
                action()

        self.sim.after(seconds, act)

    def run_deferred(self, worker: Worker) -> None:
        later, worker.later = worker.later, []
        for action in later:
            self._after(self.sim.rng.uniform(0.0, 0.1), worker, action)

    def _follow(self, worker: Worker) -> None:
        """Let a worker react to a lost peer: most see a broken connection, others wait for ever."""
        rng = self.sim.rng
        if worker.alive and not worker.deaf:
            self._end_after(rng.uniform(0.005, 0.4), worker, *rng.choice(FOLLOWED))

    def in_time(self, seconds: float, worker: Worker, action: Callable[[], None]) -> None:
        """Let a worker act later, unless it hangs or waits for one that does."""

        def act() -> None:
            if self.is_still(worker):
                worker.later.append(action)
            else:
                action()

        self._after(seconds, worker, act)

    def heed(self, worker: Worker) -> None:
        """Let a worker take its notice: in some rounds all save and leave then."""
        this, steps = worker.world, self.sim.steps
        assert steps is not None, "there are notices"
        if this.leaves is None:
            this.leaves = steps.rng.random() < self.sim.plan.leaves
        if not this.leaves:
            return
        if worker.rank == 0 and self.sim.plan.saves:
            file = File(f"ckpt-{len(self._files)}", self.sim.now, broken=False, complete=True)
            self._files[file.path] = file
            self.directory.append(file)
        self._end_after(steps.rng.uniform(0.0, 2.0), worker, 0, 0)

    def _save(self, writer: Worker) -> None:
        def begin() -> None:
            if writer.alive:
                broken = self._rng.random() < self.sim.plan.broken
                file = File(f"ckpt-{len(self._files)}", self.sim.now, broken)
                self._files[file.path] = file
                self.directory.append(file)
                self._after(SAVING, writer, lambda: finish(file))

        def finish(file: File) -> None:
            if writer.alive:
                file.complete = True
                writer.saved += SAVING
                self._save(writer)

        self._after(self.sim.rng.uniform(0.0, self.sim.plan.pace), writer, begin)
