"""A simulated agent: a real core, and a stand-in for its fork server and its loop."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from sim_ledger import spent_by
from sim_stage import Stage
from sim_training import Round, Worker

from hpclaunch.core.control import Control
from hpclaunch.core.member.member import AgentStart
from hpclaunch.core.protocol import effects, events
from hpclaunch.core.protocol.messages import Order
from hpclaunch.core.protocol.model import (
    HEAD,
    Answer,
    Assignment,
    Body,
    Doing,
    Evidence,
    Job,
    Leftover,
    Load,
    Look,
    NoticeAnswer,
    Origin,
    Phase,
    Query,
    QueryKind,
    RankState,
    RankVitals,
    Request,
    Sample,
    Seen,
    StepNotice,
    Trouble,
    Verdict,
    Vitals,
    a_machine,
)
from hpclaunch.core.protocol.values import replace
from hpclaunch.core.stragglers.arrivals import together

if TYPE_CHECKING:
    from cluster_sim import Simulation

LOADS = '  File "train.py", line 9, in load_checkpoint\nEOFError: Ran out of input'
RESTARTED = 0.02  # how likely somebody who looks is to ask for a restart
WATCH = 0.5  # seconds between two looks at the workers
STEP, LATE, JITTER = 0.2, 0.06, 0.005  # seconds of a step; how late slow workers are, and others
REMEMBERED = 20  # collectives
LEFT_BEHIND = 0.001  # seconds that leftover processes take to end when they are signalled
LATENESS = 0.002  # seconds that a loop may wake after the deadline it waits for
MOMENTS = (0.002, 0.4)  # seconds into a phase in which a fork server is killed
POSTED = 5.0  # seconds for which a fork server says that its agent is dead
REPLACING = 0.1  # the most seconds from the death of a fork server until another is there

# The order in which the loop reads its sources after it was stopped for a while.
_SOURCES = (
    events.Signalled,
    events.StoreListening
    | events.WorkerExited
    | events.WorkersSeen
    | events.WorkersAnswered
    | events.NoticeOffered
    | events.NoticeTaken
    | events.LeftBehind
    | events.WorkersGone
    | events.LeaseOver
    | events.ForkServerReplaced
    | events.HealthFound
    | events.GpusReady
    | events.TroubleFound,
    events.CheckpointChosen
    | events.CheckpointSeen
    | events.SearchFailed
    | events.StagerFound
    | events.StageFlushed
    | events.Diagnosed
    | events.EndFound,
    events.Received,
    events.PeerClosed | events.HeadClosed | events.HeadReached | events.AgentGone,
)


class Agent:
    def __init__(self, sim: Simulation, index: int, *, starts: int = 0) -> None:
        """`starts`: how many there were before in this place."""
        self.sim = sim
        self.index = index
        self.name = f"a{index}" + "+" * starts
        self.starts = starts + 1
        self.host = sim.plan.job.places[index].host
        self.living = False
        self.killed = False
        self._confirmed_until = -math.inf
        self.verdict: Verdict | None = None  # once it has left
        self.has_heard = False  # it has heard the head at least once
        self._ends_heard: list[Verdict] = []  # how the job ends, as heads have said
        self.port = 0  # where a store would listen
        self.workers: list[Worker] = []
        self._running = False
        self.lease = math.inf  # until when the workers may run
        self._held = False  # they do not, since it is over
        self._stopping = False  # they were asked to stop
        self._ordered: Assignment | None = None  # to start once there is a lease
        self._suspended = False  # the agent, its fork server and its workers
        self._forkserver = True  # False from its death until another is there
        self._forkservers = 1  # how many there were
        self._store_of: Round | None = None  # the last whose store is here
        self.doom: Phase | None = None  # in which the fork server will be killed
        self._unkillable_next = False
        self.searches = True  # it can look for checkpoints
        self._paused = False
        self._inbox: list[events.Event] = []
        self._armed = math.inf
        self._look: Look | None = None  # at what it is to look
        self._looks = Random(f"{sim.plan.seed} {self.name} looks")
        self._viewers = Random(f"{sim.plan.seed} {self.name} onlookers")
        self._watches = Random(f"{sim.plan.seed} {self.name} watches")
        self._watched = 0  # how often a round has begun here
        self._untaken = 0  # the number of the notice that is given, and not taken by all
        self.stage = Stage(self)
        self.unfit = ""  # what the next look at this node finds
        plan = sim.plan
        self._rate, self._ahead = plan.rates[index], plan.clocks[index]
        has_place = plan.numbered or index == HEAD
        mine = index if has_place else 1  # a stand-in
        job = plan.job if plan.job.elects else self._job_as_seen(mine)
        self.control = Control(
            AgentStart(
                *(job, mine, plan.nprocs[index], "", self.name, plan.gpus[index]),
                claim=self.host,
                anew=bool(starts) and plan.job.elects and mine == HEAD,
                has_place=has_place,
            )
        )
        self.deadline = self.control.next_deadline()  # changes with every event, and only then

    def _job_as_seen(self, mine: int) -> Job:
        """The agent knows the names of the first host and of its own."""
        job = self.sim.plan.job
        hosts = {HEAD: job.places[HEAD].host, mine: self.host}
        places = (replace(p, host=hosts.get(p.index, a_machine(p.index))) for p in job.places)
        return replace(job, places=tuple(places))

    @property
    def place(self) -> int:
        """The agent's index in the job, or a number beyond all places while it has none."""
        has_place = self.control.member.has_place
        return self.control.index if has_place else len(self.sim.plan.starts) + self.index

    @property
    def clock(self) -> float:
        return self.sim.now * self._rate + self._ahead

    def _clock_at(self, time: float) -> float:
        return time * self._rate + self._ahead

    @property
    def lease_is_over(self) -> bool:
        return self.clock >= self.lease

    @property
    def is_halted(self) -> bool:
        """Whether the agent's workers are held or suspended."""
        return self._held or self._suspended

    def living_workers(self) -> list[Worker]:
        return [w for w in self.workers if w.alive]

    # The loop

    def start(self) -> None:
        if self.killed:
            return
        self.living = True
        self.deliver(events.Started())
        self.stage.start()
        if self.index:
            self.sim.network.dial(self.index, (0,))
        self.sim.network.process_started(self.index)
        if self.sim.plan.looked:
            self._be_looked_at()

    def _be_looked_at(self) -> None:
        """Let a viewer look at the job, and perhaps ask for a restart."""
        if not self.living:
            return
        if not self._paused:
            before = self.control.next_deadline()
            seen = self.control.snapshot(self.clock)
            assert self.control.next_deadline() == before, "a query changes nothing"
            if seen is not None:
                self.deliver(events.LookedAt())
            wants = self._viewers.random() < RESTARTED
            if wants and self.living and not self.control.refusal(Request.RESTART):
                self.deliver(events.Requested(Request.RESTART))
        self.sim.after(self._viewers.uniform(0.5, 4.0), self._be_looked_at)

    def deliver(self, event: events.Event) -> None:
        if not self.living:
            return
        if self._paused:
            self._inbox.append(event)
            return
        self.sim.note(self.index, "<-", event)
        if isinstance(event, events.Received) and isinstance(event.message, Order):
            self.has_heard = True
            self._ends_heard += [event.message.verdict] if event.message.verdict else []
        if isinstance(event, events.ForkServerReplaced):
            self._forkserver, self._running, self.port = True, False, 0
            self._held, self._ordered = False, None
            self._forkservers += 1
        check = self.sim.checker.before(self, event)
        todo = self.control.handle(event, self.clock)
        self.deadline = self.control.next_deadline()
        for effect in todo:
            self.sim.note(self.index, "->", effect)
        self.sim.checker.after(self, event, todo, check)
        self.sim.ledger.note(self, todo)
        for effect in todo:
            self._carry_out(effect)
        if self.doom is self.control.member.phase and not self.living_workers():
            self.doom = None
            wait = self.sim.rng.uniform(0.0, self.sim.rng.choice(MOMENTS))
            self.sim.after(wait, lambda: self.kill_forkserver(for_good=False))
        self._arm()

    @property
    def ended_alone(self) -> bool:
        """Whether it was cut off, and does not know how the job ended for the others."""
        assert self.verdict is not None
        head, end = self.control.head, self.verdict
        if end.origin not in (Origin.HEAD_LOST, Origin.SIGNAL):
            return end.origin is Origin.ABSENT
        decided = [head.state.end.verdict] if head and head.state.end.verdict else []
        known = {(each.origin, each.reason) for each in (*self._ends_heard, *decided)}
        return (end.origin, end.reason) not in known

    def _arm(self) -> None:
        deadline = self.deadline
        if not self.living or deadline in (self._armed, math.inf):
            return
        self._armed = deadline
        left = (deadline - self.clock) / self.sim.plan.rates[self.index]
        wait = max(0.0, left) + self.sim.rng.uniform(1e-6, LATENESS)
        self.sim.after(wait, lambda: self._wake(deadline))

    def _wake(self, deadline: float) -> None:
        if self._armed == deadline and not self._paused:
            self._tick()

    def _tick(self) -> None:
        self._armed = math.inf
        if self.living and self.clock >= self.deadline:
            self.deliver(events.Tick())
        self._arm()

    def pause(self, seconds: float) -> None:
        if self.living and not self._paused:
            self._paused = True
            self.sim.after(seconds, self._resume)

    def _resume(self) -> None:
        self._paused = False
        inbox, self._inbox = self._inbox, []
        for source in _SOURCES:
            for event in inbox:
                if isinstance(event, source):
                    self.deliver(event)
        self._tick()

    def suspend(self) -> None:
        if self.living and not self._paused:
            self._suspended = self._paused = True

    def end_suspension(self) -> None:
        if not self._suspended:
            return
        self._suspended = False
        self._fence()
        self._move_on()
        self._resume()

    def _move_on(self) -> None:
        """Let the workers continue, if they may."""
        if self.is_halted:
            return
        if workers := self.living_workers():
            self.sim.checker.continues(self, workers[0].round)
        for worker in workers:
            self.sim.training.run_deferred(worker)

    def leave(self, *, confirmed: bool, seen: bool = True) -> None:
        """End the process and its workers; its fork server may stay to confirm that."""
        self.living = False
        if confirmed and self._forkserver:
            self._confirmed_until = self.sim.now + POSTED
        for worker in self.living_workers():
            self.sim.training.vanish(worker)
        self.sim.network.process_ended(self.index, seen=seen)

    def kill(self, *, confirmed: bool = True, seen: bool = True) -> None:
        self.killed = True
        if self.living:
            self.leave(confirmed=confirmed, seen=seen)

    @property
    def is_confirmed_dead(self) -> bool:
        """Whether the agent's fork server is left to confirm its death."""
        return self.sim.now < self._confirmed_until

    # Effects

    def _carry_out(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Send(to=to, message=message):
                self.sim.network.send(self.index, to, message)
            case effects.Dial(agents=agents, addresses=addresses):
                self.sim.network.dial(self.index, agents, addresses)
            case effects.TakePlace():
                self.sim.network.dial(self.index, ())
                self.sim.network.dial(self.index, (HEAD,))
                self.deliver(events.PlaceTaken(self.sim.fresh_port()))
            case effects.Probe():
                self.sim.network.probe(self.index, effect)
            case effects.OpenStore():
                if self._forkserver:
                    self.port = self.sim.fresh_port()
                    self._answer(events.StoreListening(self.port), self.sim.rng.uniform(0, 0.05))
            case effects.CheckHealth():
                wait = self.sim.rng.choice((0.0001, 0.2))
                self.sim.after(wait, lambda: self.deliver(events.HealthFound(self.unfit)))
            case effects.PrepareGpus(assignment=part):
                wait = self.sim.rng.choice((0.0001, 0.5))
                self.sim.after(wait, lambda: self.deliver(events.GpusReady(part.round)))
            case effects.ChooseCheckpoint():
                wait = self.sim.rng.uniform(0.0, self.sim.plan.search)
                self.sim.after(wait, lambda: self._choose(effect))
            case effects.FlushStage(number=number):
                self.stage.flush(number)
            case effects.LookAt(look=look):
                self._look = look
                if look is not None and not look.staged:
                    self.stage.leave()
                if look is not None:
                    self.sim.after(self._looks.uniform(0.0, 0.1), lambda: self._look_at(look))
            case effects.Diagnose(number=number):
                wait = self.sim.rng.uniform(0.0, 2.0)
                known = events.Diagnosed("it is simulated", number)
                self.sim.after(wait, lambda: self.deliver(known))
            case effects.StartWorkers(assignment=part):
                self._start_workers(part)
            case effects.KeepWorkers(until=until):
                self.lease = until
                left = (until - self.clock) / self.sim.plan.rates[self.index]
                self.sim.after(max(0.0, left), self._fence)
                # Held workers that were asked to stop are killed, and do not continue.
                if self._held and not (self._stopping or self.lease_is_over):
                    self._held = False
                    self._move_on()
                    if self._ordered is not None:
                        part, self._ordered = self._ordered, None
                        self._begin(part)
            case effects.AskForEnd(number=number):
                if self._watches.random() < 0.95:  # else Slurm does not answer
                    wait = self._watches.uniform(0.01, 0.2)
                    self.sim.after(wait, lambda: self._find_end(number))
            case effects.OfferNotice(notice=notice):
                self._request(lambda: self._offer(notice))
            case effects.WithdrawNotice():
                self._request(self._withdraw)
            case effects.GiveNotice(number=number):
                self._request(lambda: self._give(number))
            case effects.AskWorkers(query=query):
                self._ask_workers(query)
            case effects.StopWorkers() if self._held:
                self._stopping = True
                self._answer(events.LeaseOver())
                self._kill_workers()
            case effects.StopWorkers():
                self._stopping = True
                for worker in self.living_workers():
                    self.sim.training.terminate(worker)
            case effects.KillIdleWorkers():
                for worker in self.living_workers():
                    if not worker.saving:
                        self.sim.training.kill(worker)
            case effects.KillWorkers():
                self._kill_workers()
            case effects.Exit(verdict=verdict, alone=alone):
                self.verdict = verdict
                self.sim.checker.concludes(self, verdict)
                self.leave(confirmed=alone)

    def _fence(self) -> None:
        """Hold the workers without a lease, as the fork server does whatever the agent does."""
        if self.clock < self.lease - 1e-9 or not self._forkserver or not self._running:
            return
        if self._held or self._suspended:
            return
        self._answer(events.LeaseOver())
        self._held = True
        if self._stopping:
            self._kill_workers()

    def _kill_workers(self) -> None:
        """Kill the workers; held ones do nothing until they are gone."""
        if self._ordered is not None:  # they were never started
            self._ordered, self._running, self._held = None, False, False
            self._answer(events.WorkersGone())
        for worker in self.living_workers():
            self.sim.training.kill(worker)

    def _choose(self, effect: effects.ChooseCheckpoint) -> None:
        number = effect.number
        if not self.searches:
            trouble = Trouble(Origin.TROUBLE, f"{self.host} cannot look")
            self.deliver(events.SearchFailed(trouble, number))
            return
        file, staged = None, False
        if self.sim.plan.job.stages:
            file, staged = self.stage.search(effect)
        else:
            file = self.sim.training.newest_complete(self.index, dict(effect.avoid))
        if file is None:
            self.deliver(events.CheckpointChosen("", number=number, staged=staged))
            return
        step, at = int(file.path.partition("-")[2]), int(file.at * 1e9)
        age = self.sim.now - file.at
        more = {"step": step, "time": at, "age": age, "number": number, "staged": staged}
        self.deliver(events.CheckpointChosen(file.path, **more))

    def _look_at(self, look: Look) -> None:
        """Look for the checkpoint repeatedly until it is seen."""
        if self._look is not look or not self.living:
            return
        training = self.sim.training
        there = training.sees(self.index, look.path)
        if look.staged:
            there = not self.stage.has_left and training.is_held(self.control.index, look.path)
        missing = "" if there else "there is no such file"
        self.deliver(events.CheckpointSeen(Seen(look.number, look.mark, look.share, missing)))
        if missing:
            self.sim.after(1.0, lambda: self._look_at(look))

    # The fork server

    def _answer(self, event: events.Event, wait: float = 0.0005) -> None:
        asked = self._forkservers

        def deliver() -> None:
            if self._forkserver and self._forkservers == asked:
                self.deliver(event)

        self.sim.after(wait, deliver)

    def _request(self, action: Callable[[], None]) -> None:
        """Requests are read one after the other, unless the fork server is gone by then."""
        asked = self._forkservers

        def act() -> None:
            if self._forkserver and self._forkservers == asked and self._running:
                action()

        self.sim.after(0.0005, act)

    def _offer(self, notice: StepNotice) -> None:
        if self._ordered is not None:
            return  # its workers are still to be started
        steps = self.sim.steps
        accepted = NoticeAnswer(notice.number, accepted=True)
        answer = accepted if steps is None else steps.offer(self.living_workers(), notice)
        self._answer(events.NoticeOffered(answer))

    def _withdraw(self) -> None:
        if self.sim.steps is not None:
            self.sim.steps.withdraw(self.living_workers())

    def _give(self, number: int) -> None:
        if self.sim.steps is not None:
            self.sim.steps.give(self.living_workers(), number)
        self._untaken = number
        self._watch_notice()

    def _watch_notice(self) -> None:
        steps, number = self.sim.steps, self._untaken
        mine = [w for w in self.workers if w.round == self.control.member.round]
        if number and (steps is None or steps.all_taken(mine, number)):
            self._untaken = 0
            self._answer(events.NoticeTaken(number))

    def _find_end(self, number: int) -> None:
        at = self.sim.ends_at
        self.sim.end_known_at = min(self.sim.end_known_at, self.sim.now)
        left = None if at is None else (at - self.sim.now) * self.sim.plan.rates[self.index]
        since, host = self.sim.plan.drains
        may = self.sim.plan.may_requeue
        found = events.EndFound(left, self.sim.job_state, may, number=number)
        self.deliver(replace(found, draining=(host,) if self.sim.now >= since else ()))

    def _start_workers(self, part: Assignment) -> None:
        if not part.stages:
            self.stage.leave()
        if not self._forkserver:
            return
        self._running, self._stopping, self._held = True, False, False
        if self.lease_is_over:
            self._answer(events.LeaseOver())
            self._held, self._ordered = True, part
        else:
            self._begin(part)

    def _begin(self, part: Assignment) -> None:
        rng, plan = self.sim.rng, self.sim.plan
        self.sim.checker.begins(self, part)
        world = self.sim.training.world(part)
        if part.hosts_store:
            self._store_of = world
        for offset in range(part.nproc):
            mute, deaf = rng.random() < plan.stubborn, rng.random() < 0.15
            rank = part.first_rank + offset
            worker = Worker(self.index, part.round, world, rank, self._worker_ended, mute, deaf)
            self.workers.append(worker)
            self.sim.training.join(worker)
            if self._unkillable_next:
                self._unkillable_next = False
                self.sim.training.hang(worker)

        self._watched += 1
        self._untaken = 0
        if plan.hangs or plan.sampled or plan.step:
            self._watch(self._watched)

    def _watch(self, number: int) -> None:
        """Report the progress of the workers every now and then."""
        if number != self._watched or not self.living_workers() or not self._forkserver:
            return
        self._see_workers()
        self._watch_notice()
        self.sim.after(WATCH, lambda: self._watch(number))

    def _see_workers(self) -> None:
        living = self.living_workers()
        if not living or self.is_halted or self._stopping:
            return
        still = all(map(self.sim.training.is_still, living))
        since = max(w.world.still_since for w in living)
        self._answer(
            events.WorkersSeen(
                steps=tuple(self._begun(worker) + self._made() for worker in living),
                still=self.sim.now - since if still else 0.0,
                gap=0.0,
                busy=still and living[0].world.still_until < math.inf,
                trains=True,
                meets=False,
                patient=False,
                traced=False,
                spent=self._spent(),
                doing=self._doing(),
            )
        )

    def _spent(self) -> tuple[int, ...]:
        """Return what its workers of the round have spent their time on, as a mean of them."""
        mine = [w for w in self.workers if w.round == self.workers[-1].round]
        each = [spent_by(worker, self.sim) for worker in mine]
        rate = self.sim.plan.rates[self.index]
        return tuple(round(1000 * rate * sum(s) / len(mine)) for s in zip(*each, strict=True))

    def _doing(self) -> int:
        """The first of it that is not over."""
        mine = self.living_workers()
        if not mine:
            return Doing.NOTHING - 1
        spent = [spent_by(worker, self.sim)[:-1] for worker in mine]
        return min(max(i for i, s in enumerate(each) if s or not i) for each in spent)

    def _begun(self, worker: Worker) -> int:
        return 100 if self.sim.steps is None else self.sim.steps.paces[worker].begun

    def _ask_workers(self, query: Query) -> None:
        find: dict[QueryKind, tuple[Random, float, float, Callable[[], Body | None]]] = {
            QueryKind.EVIDENCE: (self._watches, 0.1, 0.6, self._evidence),
            QueryKind.SAMPLE: (self._watches, 0.1, 0.6, self._sample),
            QueryKind.VITALS: (self._viewers, 0.01, 0.3, self._vitals),
        }
        random, soonest, latest, found = find[query.kind]

        def answer() -> None:
            if (body := found()) is not None:
                self._answer(events.WorkersAnswered(Answer(query, body)))

        if random.random() < 0.9:  # else its fork server is too slow
            self.sim.after(random.uniform(soonest, latest), answer)

    def _evidence(self) -> Evidence:
        self._see_workers()
        states = []
        for worker in self.living_workers():
            this = worker.world
            waits = None if worker.rank == this.culprit else ("0", 7, "all_reduce")
            busy = waits is None and this.still_until < math.inf
            states.append(RankState(worker.rank, "a.py:9, f", "S", busy=busy, waits=waits))
        return Evidence(tuple(states))

    def _made(self) -> int:
        """Steps, where the workers make some."""
        return int(self.sim.now / STEP) if self.sim.plan.sampled else 0

    def _vitals(self) -> Vitals:
        ranks = (RankVitals(w.rank, "step", 1, 0, 1.0, 1) for w in self.living_workers())
        return Vitals(tuple(ranks))

    def _sample(self) -> Sample | None:
        """Return a sample: each step has a collective, which slow workers begin a little later."""
        plan, living = self.sim.plan, self.living_workers()
        if not living:
            return None
        begun = living[0].world.begun
        last = int((self.sim.now - begun) / STEP)
        late = LATE if self.index == plan.slow_agent else 0.0
        traces = {}
        for worker in living:
            steps = range(max(0, last - REMEMBERED), last)
            times = {step: begun + step * STEP + late for step in steps}
            jitter = {step: self._watches.uniform(0.0, JITTER) for step in steps}
            traces[worker.rank] = {
                "0": {step: int(1e9 * self._clock_at(times[step] + jitter[step])) for step in steps}
            }
        loads = tuple(Load(worker.rank, 0.5, 0.0, 0.0, 0.0) for worker in living)
        return Sample(STEP, arrivals=together(traces), loads=loads)

    def _worker_ended(self, worker: Worker, code: int, signum: int) -> None:
        tail = LOADS if worker.world.loads and not signum else ""
        self._answer(events.WorkerExited(worker.rank, code, int(signum), tail))
        if self._running and not self.living_workers():
            self._watch_notice()
            self._running = self._held = False
            if self.sim.plan.sweep > LEFT_BEHIND:
                self._answer(events.LeftBehind((Leftover(pid=1, program="helper"),)))
            self._answer(events.WorkersGone(self._spent()), self.sim.plan.sweep)

    def kill_forkserver(self, *, for_good: bool) -> None:
        """Kill the fork server, and with it the workers and the store. Until the agent notices, it
        sends its requests to the dead one."""
        if not self._forkserver:
            return
        self._forkserver = False
        self._held, self._ordered = False, None
        for worker in self.living_workers():
            self.sim.training.vanish(worker)
        if self._store_of is not None:
            self.sim.training.lose_store(self._store_of)
        self.sim.after(
            self.sim.rng.uniform(0.0, REPLACING), lambda: self._miss_forkserver(for_good)
        )

    def _miss_forkserver(self, for_good: bool) -> None:
        if not for_good and not self.living_workers():
            self.deliver(events.ForkServerReplaced())
            return
        reason = f"the fork server on {self.host} was killed"
        self.deliver(events.HealthFound(reason))
        self.deliver(events.WorkersGone())

    def make_unkillable(self) -> None:
        """Let one worker survive SIGKILL: one that runs, or the next one to start."""
        if workers := self.living_workers():
            self.sim.training.hang(workers[0])
        else:
            self._unkillable_next = True

    def trouble(self) -> None:
        """Report that this node lacks something that the job needs."""
        self.deliver(events.TroubleFound(Trouble(Origin.USAGE, f"no script on {self.host}")))

    def break_node(self) -> None:
        """Break the node, which the agent notices at once or with its next check."""
        self.unfit = f"something on {self.host} is broken"
        if self.living and self.sim.rng.random() < 0.7:
            self.deliver(events.HealthFound(self.unfit))

    def signal(self, signum: signal.Signals) -> None:
        if self.living:
            self.deliver(events.Signalled(int(signum)))
