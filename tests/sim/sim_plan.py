"""The plan of one simulated job, with its faults, drawn from its seed before the job begins.

The plan holds what a checker must know afterwards: which faults there were decides what may be
asked of the outcome. The small accidents of the way (delays, exit codes) come from the same
generator while the job runs.
"""

from __future__ import annotations

import itertools
import math
from enum import Enum
from random import Random

from hpclaunch.core.hangs.suspicion import PATIENCE
from hpclaunch.core.protocol.model import (
    REQUEUED_ENDS,
    EndKind,
    Grow,
    Job,
    Phase,
    Place,
    Requeueing,
)
from hpclaunch.core.protocol.timing import Timing
from hpclaunch.core.protocol.values import replace, value

MAX_AGENTS, MOST_AGENTS = 16, 64  # the latter in a few runs, which take long
SKEW = 2e-4  # a bad crystal; the worst that NTP corrects is 5e-4
ORDERLY = 12.0  # seconds between two losses, for everybody to be over the first
UNEVEN = 0.5  # seconds between the first and the last node that is suspended, or resumed
WITHOUT_SLURM = 0.2  # the share of them, of the jobs with one agent on each of several nodes
LATEST_START = 60.0  # seconds; an agent that starts later than that is as good as absent


class Kind(Enum):
    # What no user may ever notice.
    PAUSE = "the agent is stopped for a while, for less than the silence that counts as a loss"
    BLIP = "its connection to the head is closed and made again at once"
    USR1 = "SIGUSR1, which is for the workers"
    SUSPEND = "the whole job is suspended for a while, on one node a moment before the other"
    # What costs a restart at most.
    KILL_FORKSERVER = "SIGKILL to the fork server: its workers die with it, and another comes"
    # What costs a node, and the job where there are too few of them.
    UNFIT = "something on its node is found to be broken"
    STALL = "the agent is stopped for longer than the silence that counts as a loss"
    FREEZE = "its whole node stands still for a while"
    SEARCH = "it cannot look for checkpoints any more"
    CUT = "for a while no message to or from the agent, and no sign of it"
    MUTE = "for a while no message from the agent"
    DEAF = "for a while no message to the agent"
    KILL_AGENT = "SIGKILL to the agent: its peers see the connection close"
    RESTART_AGENT = "the same, its fork server may be killed, too; it is started again later"
    PARTITION = "for a while the nodes are in two or three groups that cannot reach one another"
    REJECT = "the same, and connections between two groups are closed and refused"
    REJECT_ONE_WAY = "the same, but only one of them notices"
    KILL_BOTH = "SIGKILL to the agent and its fork server: nobody is left to say that it is dead"
    SWITCH_OFF = "its host is switched off: not even a connection is closed"
    # What ends the job.
    SIGTERM = "SIGTERM to one agent"
    SIGINT = "SIGINT twice to one agent"
    SCANCEL = "SIGTERM to every agent"
    TROUBLE = "the agent cannot take part"
    LOSE_FORKSERVER = "the same, and no other can be started"
    UNKILLABLE = "one of its workers survives SIGKILL"


# An agent that sleeps while its connection is closed cannot make it again: not both in one run.
HARMLESS = (Kind.PAUSE, Kind.BLIP, Kind.USR1)
LOSSES = (Kind.STALL, Kind.CUT, Kind.MUTE, Kind.DEAF, Kind.KILL_AGENT)
UNPROVEN = (Kind.REJECT, Kind.REJECT_ONE_WAY, Kind.KILL_BOTH, Kind.SWITCH_OFF)
DISRUPTIONS = (
    *(*LOSSES, *UNPROVEN),
    *(Kind.FREEZE, Kind.SEARCH, Kind.RESTART_AGENT, Kind.PARTITION),
)
SURVIVED = (*HARMLESS, Kind.SUSPEND, Kind.KILL_FORKSERVER, Kind.UNFIT)
# When a fault of the fork server strikes while there are no workers: moments easily missed.
AIMED = (Phase.PREPARING, Phase.IDLE, Phase.RUNNING, Phase.STOPPING, Phase.DONE)
FATAL = tuple(kind for kind in Kind if kind not in (*SURVIVED, *DISRUPTIONS))


@value(frozen=True)
class Fault:
    at: float
    kind: Kind
    agent: int
    lasts: float = 0.0
    groups: tuple[int, ...] = ()  # of a partition: in which one each node is
    phase: Phase | None = None  # it strikes once the agent is in it without living workers

    @property
    def is_proven(self) -> bool:
        """Whether a fork server is left to confirm the agent's death, as in half of the cases."""
        return Random(f"{self.at} {self.agent} proven").random() < 0.5


@value(frozen=True)
class Plan:
    seed: int
    job: Job
    nprocs: tuple[int, ...]
    gpus: tuple[tuple[str, ...], ...]  # what each agent's task sees
    starts: tuple[float, ...]  # when each agent's process begins
    clocks: tuple[float, ...]  # what each one's monotonic clock shows at time 0, and
    rates: tuple[float, ...]  # how fast it goes
    faults: tuple[Fault, ...]
    crashes: int  # rounds in which a worker fails by itself
    work: float  # seconds that a round's workers need
    coupled: bool  # the workers meet in collectives: nobody gets on without all the others
    saves: bool  # rank 0 writes checkpoints
    stubborn: float  # how likely a worker is to ignore SIGTERM
    savers: float  # how likely it is to save something first, which takes its time
    sweep: float  # seconds until what the workers of an agent left behind is gone
    delay: float  # the usual delay of a message
    slow: float  # how likely it is to take up to a second
    drop: float
    duplicate: float
    pace: float = 1.0  # the most seconds between two checkpoints, and
    search: float = 0.3  # until the newest is found
    lag: float = 0.0  # the most seconds until all nodes see a checkpoint
    broken: float = 0.0  # how likely one is that nobody can resume from
    hangs: int = 0  # rounds in which a worker hangs, or rests for a while
    sampled: bool = False  # the workers make steps, and the head has samples taken
    slow_agent: int = -1  # the others wait for its workers; -1: for nobody's
    step: float = 0.0  # the most seconds that a step takes; 0: there are none to speak of
    trains: float = 1.0  # how likely a worker is to make steps
    leaves: float = 0.0  # how likely workers are to save and leave when they have notice
    ends: tuple[tuple[float, float], ...] = ()  # from when on Slurm is to end the job at what time
    preempts: bool = False  # the last of these is for the sake of another job,
    requeues: bool = False  # or of another run
    may_requeue: bool | None = None  # whether Slurm may start the job again; None: it does not say
    drains: tuple[float, str] = (math.inf, "")  # from when on Slurm drains which host
    looked: bool = False  # somebody looks at the job now and then, and has its workers restarted
    # Agents that cannot save in memory from some time on; 0: from their start.
    refusals: tuple[tuple[float, int], ...] = ()
    stagers_end: tuple[tuple[float, int], ...] = ()  # when which agent's stager is killed
    unfetched: float = 0.0  # how likely a node is not to get a checkpoint into its memory
    unflushed: float = 0.0  # how likely storage cannot be written when all is to go there
    numbered: bool = True  # False: all agents but the first get their places as they come

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset(fault.kind for fault in self.faults)

    @property
    def kills(self) -> int:
        """The number of rounds that may be lost beside those in which a worker fails by itself."""
        return sum(fault.kind is Kind.KILL_FORKSERVER for fault in self.faults)

    @property
    def unfit(self) -> frozenset[int]:
        """The nodes that are found unfit, should the job last so long."""
        places = self.job.places
        return frozenset(places[f.agent].node for f in self.faults if f.kind is Kind.UNFIT)

    @property
    def spare(self) -> int:
        """The number of nodes that the job can do without."""
        return self.job.nodes - (self.job.fewest or self.job.most or self.job.nodes)

    @property
    def survived(self) -> bool:
        """Nothing fails but what a restart makes good, and nobody may be lost in error."""
        harmless = not (self.drop or self.slow or self.broken or self.hangs or self.ends)
        harmless &= not (self.unfetched or self.unflushed)
        return self.kinds <= set(SURVIVED) and harmless and self.rests

    @property
    def rests(self) -> bool:
        """No pause follows so soon on another that together they are as long as a silence."""
        pauses = [f for f in self.faults if f.kind is Kind.PAUSE]
        begun = sorted((max(f.at, self.starts[f.agent]), f.lasts) for f in pauses)
        pairs = itertools.pairwise(begun)
        return all(b - (a + lasts) > self.job.timing.loss for (a, lasts), (b, _) in pairs)

    @property
    def orderly(self) -> bool:
        """Whether nodes are lost one by one, for good, and the others can always continue."""
        lost = [f for f in self.faults if f.kind in (Kind.KILL_AGENT, Kind.CUT)]
        if not lost or self.drop or self.slow or self.crashes or max(self.starts) > 1.0:
            return False
        if self.broken or self.hangs or self.ends or self.unfetched or self.unflushed:
            return False
        if not self.job.elects and any(f.agent == 0 for f in lost):
            return False
        if any(f.kind not in (Kind.KILL_AGENT, Kind.CUT, Kind.USR1) for f in self.faults):
            return False
        nodes = [self.job.places[f.agent].node for f in lost]
        times = [max(self.starts) + 2.0, *(f.at for f in lost)]
        apart = all(b - a > ORDERLY for a, b in itertools.pairwise(times))
        left = self.job.nodes
        for fault in lost:
            if fault.kind is Kind.CUT and (left < 3 or fault.lasts < 1e6):
                return False
            left -= 1
        return apart and len(set(nodes)) == len(nodes) and len(nodes) <= self.spare

    @property
    def patience(self) -> float:
        """The most seconds until a hang is found."""
        return (PATIENCE + 1) * self.job.timing.hang + 10.0 if self.hangs else 0.0

    @property
    def losses(self) -> int:
        return sum(fault.kind in DISRUPTIONS for fault in self.faults)

    @property
    def bound(self) -> float:
        """The time by which every living agent must have left."""
        job = self.job
        ending = (
            job.timing.grace + job.timing.unkillable + job.timing.loss + job.timing.goodbye + 10.0
        )
        return (
            LATEST_START
            + sum(f.lasts + UNEVEN for f in self.faults if f.kind in (Kind.SUSPEND, Kind.FREEZE))
            + job.timing.join
            + (job.max_restarts + 2 + len(self.unfit) + 2 * self.losses)
            * (self.work + ending + job.timing.wait + self.lag + self.patience)
        )


def timed(job: Job, **times: float) -> Job:
    return replace(job, timing=replace(job.timing, **times))


def draw(seed: int) -> Plan:
    looked = Random(f"{seed} onlookers").random() < 0.15
    plan, more = replace(_drawn(seed), looked=looked), Random(f"{seed} stages")
    stages = plan.saves and not plan.job.local and more.random() < 0.25
    return _staged(more, plan) if stages else plan


def _staged(rng: Random, plan: Plan) -> Plan:
    """Save in the memory of all nodes."""
    agents, span = range(len(plan.starts)), max(plan.starts) + 2 * plan.work
    refusals = [(rng.choice((0.0, rng.uniform(0.0, span))), rng.choice(agents))]
    ends = [(rng.uniform(0.0, span), rng.choice(agents)) for _ in range(rng.choice((0, 0, 1, 3)))]
    return replace(
        plan,
        job=replace(plan.job, stages=True),
        refusals=tuple(refusals) if rng.random() < 0.4 else (),
        stagers_end=tuple(ends),
        unfetched=rng.choice((0.0, 0.0, 0.1)),
        unflushed=rng.choice((0.0, 0.0, 0.3)),
    )


def _drawn(seed: int) -> Plan:
    plan, more = _draw(seed), Random(f"{seed} by an endpoint")
    single = plan.job.nodes > 1 and len(plan.starts) == plan.job.nodes
    if single and more.random() < WITHOUT_SLURM:
        plan = _without_slurm(more, plan)
    more = Random(f"{seed} requeue")
    plan = _requeued(more, plan) if more.random() < 0.3 else plan
    more = Random(f"{seed} hangs")
    plan = _hanging(more, plan) if more.random() < 0.15 else plan
    more = Random(f"{seed} stragglers")
    if more.random() < 0.15:
        return _sampled(more, plan)
    more = Random(f"{seed} notices")
    return _ending(more, plan) if not plan.hangs and more.random() < 0.14 else plan


def _ending(rng: Random, plan: Plan) -> Plan:
    """Let Slurm end the job, or a user signal the workers, beside the other faults."""
    calm = rng.random() < 0.4
    faults = [f for f in plan.faults if f.kind in SURVIVED] if calm else [*plan.faults]
    work = rng.uniform(10.0, 60.0)
    begin = max(plan.starts)
    faults += [
        Fault(begin + rng.uniform(0.0, work), Kind.USR1, rng.randrange(len(plan.starts)))
        for _ in range(rng.choice((0, 1, 3)))
    ]
    ends = [(0.0, begin + rng.uniform(3.0, 1.5 * work))]
    if rng.random() < 0.3:  # an administrator changes it
        at = rng.uniform(0.0, ends[0][1])
        ends.append((at, at + rng.uniform(1.0, work)))
    preempts = rng.random() < 0.3
    if preempts:
        at = rng.uniform(0.0, ends[-1][1])
        ends.append((at, at + rng.choice((0.0, rng.uniform(1.0, 30.0)))))
    job = timed(
        replace(plan.job, slurm_id="7"),
        notice=rng.choice((2.0, 5.0, 20.0)),
        first_steps=rng.choice((0.0, 3.0)),
        grace=rng.choice((0.0, 2.0, 5.0)),
    )
    return replace(
        plan,
        job=job,
        faults=tuple(sorted(faults, key=lambda f: f.at)),
        work=work,
        step=rng.choice((0.1, 0.5, 3.0)),
        trains=rng.choice((1.0, 1.0, 0.8, 0.0)),
        leaves=rng.choice((0.0, 0.5, 1.0)),
        coupled=rng.random() < 0.8,
        ends=tuple(ends),
        preempts=preempts and not (requeues := rng.random() < 0.4),
        requeues=preempts and requeues,
        drains=(rng.uniform(0.0, work), rng.choice(plan.job.places).host),
    )


def _requeued(rng: Random, plan: Plan) -> Plan:
    """Let the job continue in another run, or not."""
    requeueing = Requeueing(
        on=rng.choice((REQUEUED_ENDS, (*REQUEUED_ENDS, EndKind.FAILURE))),
        most=rng.choice((0, 5)),
        before=rng.randrange(2),
        is_chain=rng.random() < 0.3,
    )
    first_round = rng.randrange(5)
    rng.random()  # as many draws as ever: seeds keep their stories
    job = replace(plan.job, requeueing=requeueing, first_round=first_round)
    return replace(plan, job=job, may_requeue=rng.choice((True, False, None)))


def _hanging(rng: Random, plan: Plan) -> Plan:
    """Let workers hang in some rounds, beside the other faults."""
    calm = rng.random() < 0.5
    faults = tuple(f for f in plan.faults if f.kind in SURVIVED) if calm else plan.faults
    return replace(
        plan,
        job=timed(plan.job, hang=rng.choice((2.0, 5.0, 20.0))),
        faults=faults,
        coupled=rng.random() < 0.8,
        hangs=rng.randint(1, 4),
        crashes=rng.choice((0, plan.crashes)),
    )


def _sampled(rng: Random, plan: Plan) -> Plan:
    """Workers keep pace, or some do not, for long enough that it can be seen."""
    job = replace(plan.job, replaces_stragglers=rng.random() < 0.5)
    return replace(
        plan,
        job=timed(job, sampling=2.0),
        work=plan.work + rng.uniform(0.0, 10.0),
        coupled=True,
        sampled=True,
        slow_agent=rng.randrange(-1, len(plan.starts)),
    )


def _without_slurm(rng: Random, plan: Plan) -> Plan:
    """Agents that know where the first one is, which alone can lead."""
    if rng.random() < 0.3:
        plan = _first_anew(rng, plan)
        plan = _more_anew(rng, plan) if rng.random() < 0.5 else plan
        plan = replace(plan, job=timed(plan.job, loss=rng.choice((3.0, 3.0, 40.0))))
    return replace(plan, job=replace(plan.job, elects=False), numbered=rng.random() < 0.3)


def _more_anew(rng: Random, plan: Plan) -> Plan:
    """Restart other agents as well, as a loop on each machine would."""
    (first,) = (f for f in plan.faults if f.kind is Kind.RESTART_AGENT)
    numbers = range(1, len(plan.starts))
    faults = [
        replace(first, agent=number, at=first.at + rng.uniform(-2.0, 15.0))
        for number in rng.sample(numbers, rng.randint(1, len(numbers)))
    ]
    return replace(plan, faults=tuple(sorted((*plan.faults, *faults), key=lambda f: f.at)))


def _draw(seed: int) -> Plan:
    rng = Random(seed)
    places = _places(rng)
    size = Random(f"{seed} size")
    if size.random() < 0.005:
        nodes = size.randint(MAX_AGENTS + 1, MOST_AGENTS)
        places = tuple(Place(i, i, f"n{i}") for i in range(nodes))
    job = Job(
        places,
        max_restarts=rng.choice((0, 1, 3)),
        timing=Timing(grace=rng.choice((0.0, 2.0, 5.0, 20.0)), join=120.0),
    )
    latest = rng.choice((0.5, 3.0, LATEST_START))
    starts = tuple(rng.choice((0.0, rng.uniform(0.0, latest))) for _ in places)
    mood = rng.random()
    harmless, fatal, crashes = 0, 0, 0
    if mood < 0.7:
        harmless = rng.randint(0, 3)
    if mood > 0.3:
        crashes = rng.randint(0, 4)
    if mood > 0.5:
        fatal = rng.choice((1, 1, 1, 2, 3))
    work = rng.uniform(0.5, 12.0)
    harmless_kinds = (Kind.USR1, rng.choice((Kind.PAUSE, Kind.BLIP)))
    span = max(starts) + work * (1 + min(crashes, job.max_restarts))
    faults = [
        Fault(
            at=rng.uniform(0.0, span),
            kind=rng.choice(kinds),
            agent=rng.randrange(len(places)),
            lasts=rng.uniform(0.1, 2.0),
        )
        for count, kinds in ((harmless, harmless_kinds), (fatal, FATAL))
        for _ in range(count)
    ]
    # Drawn apart, so that the rest of a seed's run is what it was before there was any of this.
    more = Random(f"{seed} and more")
    kills = more.choice((0, 0, 0, 1, 1, 2, 3))
    faults += [
        Fault(
            at=more.uniform(0.0, span),
            kind=Kind.KILL_FORKSERVER,
            agent=more.randrange(len(places)),
            phase=more.choice((None, *AIMED)),
        )
        for _ in range(kills)
    ]
    job = timed(job, stuck=more.choice((1.0, 5.0)))
    nprocs = tuple(rng.choice((1, 2, 4)) for _ in places)
    about = Random(f"{seed} about GPUs and health")
    job, gpus = _gpus(about, job)
    if job.health:
        faults += [
            Fault(about.uniform(0.0, span), Kind.UNFIT, about.randrange(len(places)))
            for _ in range(about.choice((0, 0, 1, 1, 2)))
        ]
    out = Random(f"{seed} losses")
    if out.random() < 0.5:
        faults += [
            Fault(
                at=out.uniform(0.0, span),
                kind=out.choice(LOSSES),
                agent=out.choice((0, *range(len(places)))),
                lasts=out.choice((out.uniform(1.0, 6.0), out.uniform(3.0, 30.0), 1e6)),
            )
            for _ in range(out.choice((1, 1, 2, 3)))
        ]
        # Nobody wakes up one that sleeps for ever.
        faults = [
            replace(f, lasts=min(f.lasts, 30.0)) if f.kind is Kind.STALL else f for f in faults
        ]
    apart = Random(f"{seed} partitions")
    if apart.random() < 0.25:
        faults += [
            Fault(
                at=apart.uniform(0.0, span),
                kind=apart.choice((Kind.PARTITION, Kind.PARTITION, Kind.RESTART_AGENT)),
                agent=apart.randrange(
                    1, len(places)
                ),  # Slurm starts no task again, least the first
                lasts=apart.choice((apart.uniform(1.0, 8.0), apart.uniform(5.0, 40.0))),
                groups=tuple(apart.randrange(apart.choice((2, 2, 3))) for _ in range(job.nodes)),
            )
            for _ in range(apart.choice((1, 1, 2, 3)))
        ]
    job = replace(job, grow=apart.choice(list(Grow)))
    job = replace(job, most=out.choice((0, 0, max(1, job.nodes - 1))))
    job = timed(job, wait=out.choice((0.0, 10.0)))
    if out.random() < 0.3:
        job = replace(job, fewest=max(1, job.nodes // 2))
    if job.fewest:
        job = replace(job, fewest=min(job.fewest, job.most or job.nodes))
    # A pause together with losses, or a closed connection with them, can use up the time that an
    # agent has to be heard: then the job would be right to give it up.
    lossy = not any(f.kind in (Kind.PAUSE, Kind.BLIP) for f in faults)
    plan = Plan(
        seed=seed,
        job=job,
        nprocs=nprocs,
        gpus=gpus,
        starts=starts,
        clocks=tuple(rng.uniform(0.0, 1e6) for _ in places),
        rates=tuple(apart.uniform(1 - SKEW, 1 + SKEW) for _ in places),
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        crashes=crashes,
        work=work,
        coupled=rng.random() < 0.7,
        saves=rng.random() < 0.6,
        stubborn=rng.choice((0.0, 0.0, 0.3, 1.0)),
        savers=more.choice((0.0, 0.0, 0.3)),
        sweep=more.choice((0.001, 0.2)),
        delay=rng.choice((0.0002, 0.005, 0.05)),
        slow=rng.choice((0.0, 0.02, 0.2)) if lossy else 0.0,
        drop=rng.choice((0.0, 0.02, 0.1)) if lossy else 0.0,
        duplicate=rng.choice((0.0, 0.1, 0.5)),
    )
    seen = Random(f"{seed} what is seen of checkpoints")
    local = seen.random() < 0.15
    plan = replace(
        plan,
        job=replace(job, saves=plan.saves, local=local),
        lag=seen.choice((0.0, 0.0, 0.5, 5.0)),
        broken=seen.choice((0.0, 0.0, 0.0, 0.5)),
    )
    more = Random(f"{seed} searches")
    if more.random() < 0.05:
        struck = [Fault(more.uniform(0.0, span), Kind.SEARCH, 0)]
        struck += [replace(struck[0], agent=more.randrange(len(places)))] * more.choice((0, 1))
        faults = sorted((*plan.faults, *struck), key=lambda fault: fault.at)
        return replace(plan, faults=tuple(faults))
    more = Random(f"{seed} hosts that refuse")
    if job.nodes > 1 and more.random() < 0.1:
        unproven = (_unproven(more, span, plan) for _ in range(more.choice((1, 1, 2, 3))))
        faults = sorted((*plan.faults, *unproven), key=lambda fault: fault.at)
        return replace(plan, faults=tuple(faults))
    more = Random(f"{seed} the first one anew")
    if job.nodes > 1 and more.random() < 0.05:
        return _first_anew(more, plan)
    more = Random(f"{seed} suspensions")
    if more.random() < 0.15:
        return _suspended(more, plan)
    more = Random(f"{seed} one by one")
    if job.nodes > 1 and more.random() < 0.1:
        return _one_by_one(more, plan)
    more = Random(f"{seed} seldom a checkpoint")
    return _seldom_saved(more, plan) if job.nodes > 2 and more.random() < 0.15 else plan


def _unproven(rng: Random, span: float, plan: Plan) -> Fault:
    """Return a loss that may or may not be a death."""
    return Fault(
        at=rng.uniform(0.0, span),
        kind=rng.choice(UNPROVEN),
        agent=rng.choice((0, rng.randrange(len(plan.starts)))),
        lasts=rng.choice((rng.uniform(1.0, 8.0), rng.uniform(5.0, 40.0), 1e6)),
        groups=tuple(rng.randrange(2) for _ in range(plan.job.nodes)),
    )


def _first_anew(rng: Random, plan: Plan) -> Plan:
    """Start the first agent again in its place, while the job continues without it, or is over,
    or cannot be reached.
    """
    job = replace(plan.job, fewest=1, most=0)
    at, again = rng.uniform(2.0, 10.0), rng.choice((rng.uniform(0.2, 2.0), rng.uniform(2.0, 30.0)))
    begins = at + again - rng.uniform(0.0, 1.0)
    alone = Fault(begins, Kind.CUT, 0, rng.choice((rng.uniform(1.0, 10.0), 1e6)))
    cut = (alone,) if rng.random() < 0.4 else ()
    return replace(
        plan,
        job=timed(job, wait=10.0, stuck=1.0),
        starts=tuple(rng.uniform(0.0, 1.0) for _ in plan.starts),
        faults=tuple(sorted((Fault(at, Kind.RESTART_AGENT, 0, again), *cut), key=lambda f: f.at)),
        crashes=0,
        work=rng.choice((rng.uniform(60.0, 100.0), rng.uniform(8.0, 30.0))),
        coupled=True,
        slow=0.0,
        drop=0.0,
        broken=0.0,
    )


def _suspended(rng: Random, plan: Plan) -> Plan:
    """The whole job is, once or twice, mostly with nothing else that anybody could notice."""
    faults = [f for f in plan.faults if f.kind not in (Kind.PAUSE, Kind.BLIP)]
    calm = rng.random() < 0.7
    if calm:
        faults = [f for f in faults if f.kind in SURVIVED]
        plan = replace(plan, slow=0.0, drop=0.0, broken=0.0)
    at = max(plan.starts) + 0.5
    for _ in range(rng.choice((1, 1, 2))):
        at += rng.uniform(0.0, plan.work)
        lasts = rng.choice((rng.uniform(1.0, 5.0), rng.uniform(5.0, 300.0)))
        kind = Kind.SUSPEND if calm else rng.choice((Kind.SUSPEND, Kind.FREEZE))
        faults.append(Fault(at, kind, rng.randrange(len(plan.starts)), lasts))
        at += lasts + 5.0
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


def _seldom_saved(rng: Random, plan: Plan) -> Plan:
    """Heads are lost between failures, with a new checkpoint now and then: the restarts that were
    spent have to be known to the next one."""
    places, work = plan.job.places, rng.uniform(3.0, 15.0)
    heads = sorted({p.node: p.index for p in reversed(places)}.values())
    lost = heads[: rng.randint(1, min(3, len(heads) - 1))]
    at = sorted(rng.uniform(2.0, 40.0) for _ in lost)
    faults = [Fault(t, Kind.KILL_AGENT, agent) for t, agent in zip(at, lost, strict=True)]
    job = replace(plan.job, fewest=1, most=0, saves=True)
    job = timed(job, stuck=1.0, wait=10.0)
    return replace(
        plan,
        job=replace(job, max_restarts=rng.choice((1, 2, 3))),
        starts=tuple(rng.uniform(0.0, 1.0) for _ in plan.starts),
        faults=tuple(faults),
        crashes=rng.randint(2, 8),
        work=work,
        saves=True,
        pace=rng.choice((3.0, 20.0, 100.0)),
        search=rng.choice((0.3, 10.0)),
        stubborn=0.0,
        savers=0.0,
        slow=0.0,
        drop=0.0,
    )


def _one_by_one(rng: Random, plan: Plan) -> Plan:
    """Lose nodes for good, in a calm cluster: the others have to continue."""
    nodes = plan.job.nodes
    lost = rng.sample(range(nodes), rng.randint(1, min(4, nodes - 1)))
    if rng.random() < 0.6:
        lost = sorted({0, *lost})  # one head after the other
        lost = lost[: nodes - 1]
    faults, at = [], 3.0
    for number, node in enumerate(lost):
        agents = [p.index for p in plan.job.places if p.node == node]
        may_cut = nodes - number > 2 and len(agents) == 1
        at += ORDERLY + rng.uniform(1.0, 5.0)
        kind = rng.choice((Kind.KILL_AGENT, Kind.CUT)) if may_cut else Kind.KILL_AGENT
        faults.append(Fault(at, kind, agents[0], 1e6))
    return replace(
        plan,
        job=timed(replace(plan.job, fewest=1), stuck=1.0, wait=10.0),
        starts=tuple(rng.uniform(0.0, 1.0) for _ in plan.starts),
        faults=tuple(faults),
        crashes=0,
        work=rng.uniform(0.5, at + 20.0),
        stubborn=0.0,
        savers=0.0,
        slow=0.0,
        drop=0.0,
    )


def _gpus(rng: Random, job: Job) -> tuple[Job, tuple[tuple[str, ...], ...]]:
    """Nodes with no GPU, or some; of which tasks see all, or each its own."""
    count, own = rng.choice((0, 0, 1, 2, 4)), rng.random() < 0.3
    gpus = []
    for place in job.places:
        name = f"{place.node}-{place.index}" if own else f"{place.node}"
        gpus.append(tuple(f"GPU-{name}-{k}" for k in range(count)))
    changed = replace(
        job,
        fewest=rng.choice((0, max(1, job.nodes - 1), 1)),
        gpus_per_worker=rng.choice((1, 1, 2)),
        isolate=rng.random() < 0.2,
        health=rng.random() < 0.5,
    )
    rng.random()  # for nothing, so that earlier seeds still draw the same faults
    return changed, tuple(gpus)


def _places(rng: Random) -> tuple[Place, ...]:
    """Small clusters more often than large ones; tasks in blocks or, as `-m cyclic`, in turns."""
    nodes = rng.choice((1, 2, 2, 2, 3, 4, rng.randint(5, MAX_AGENTS)))
    per_node = rng.choice((1, 1, 1, 2, 3)) if nodes > 1 else rng.choice((2, 3))
    per_node = max(1, min(per_node, MAX_AGENTS // nodes))
    count = nodes * per_node
    cyclic = rng.random() < 0.3
    of = [i % nodes if cyclic else i // per_node for i in range(count)]
    return tuple(Place(i, node, f"n{node}") for i, node in enumerate(of))
