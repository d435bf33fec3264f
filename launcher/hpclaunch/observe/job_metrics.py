"""One launch as numbers for monitoring, by the conventions of Prometheus: base units, times as Unix
times, names that tell the unit, and labels with few values.

What an agent knows of its own node comes from every agent, and all that is known of the job from
the one that leads. So what a scrape costs does not grow with the job, but for what is told of each
rank, on request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from ..core.protocol.facts import Category
from ..core.protocol.gpu_use import GpuUse
from ..core.protocol.job_snapshot import AgentState, JobSnapshot, LaunchSnapshot, NodeGpu
from ..core.protocol.metrics import Labels, MetricFamily, MetricKind, MetricSample
from ..core.protocol.stages import Stage
from .end_causes import OF_ROUNDS
from .job_report import JobReport

PREFIX = "hpclaunch_"


def job_metrics(
    launch: LaunchSnapshot,
    report: JobReport | None,
    ended: Mapping[str, int],
    version: str,
    *,
    ranks: bool = False,
) -> list[MetricFamily]:
    """`report`: of this launch, if the agent leads. `ended`: how many rounds have ended early, by
    cause. `version`: of hpclaunch. `ranks`: also tell of each rank.
    """
    job = launch.job
    families = _Families({"hpc_job": launch.slurm_id or launch.name, "launch": launch.name})
    families.add("leads", "1 if the agent that tells leads the job.", float(job is not None))
    what = "When all that is told was so."
    families.add("snapshot_timestamp", what, launch.time, unit="seconds")
    _add_gpus(families, launch)
    if job is None:
        return families.found
    families.add_info("The launch.", {"version": version, "head": job.head})
    _add_rounds(families, job)
    _add_progress(families, job, launch.time)
    _add_ends(families, job, launch.time, ended)
    if report is not None:
        _add_ledger(families, report)
    if ranks:
        _add_ranks(families, job)
    return families.found


class _Families:
    """What is not known is left out."""

    def __init__(self, common: Labels) -> None:
        self._common = common
        self.found: list[MetricFamily] = []

    def add(self, name: str, what: str, value: float | None, *, unit: str = "") -> None:
        if value is not None:
            self.add_all(name, what, [({}, value)], unit=unit)

    def add_all(
        self,
        name: str,
        what: str,
        values: Iterable[tuple[Labels, float]],
        *,
        unit: str = "",
        kind: MetricKind = MetricKind.GAUGE,
    ) -> None:
        """The unit becomes the end of the name."""
        samples = tuple(MetricSample(self._common | labels, value) for labels, value in values)
        if samples:
            name = PREFIX + (f"{name}_{unit}" if unit else name)
            self.found.append(MetricFamily(name, kind, what, unit, samples))

    def add_info(self, what: str, labels: Labels) -> None:
        samples = (MetricSample(self._common | labels, 1.0),)
        self.found.append(MetricFamily(PREFIX.rstrip("_"), MetricKind.INFO, what, "", samples))


def _add_rounds(families: _Families, job: JobSnapshot) -> None:
    """What the job does, and where."""
    families.add_all(
        "stage",
        "1 for the stage that the job is in.",
        [({"stage": stage.value}, float(stage is job.stage)) for stage in Stage],
    )
    families.add("round", "The number of the last round.", job.round)
    families.add("world_size", "Ranks of the round; 0 between two rounds.", job.ranks)
    families.add_all("nodes", "Nodes, by what they do in the job.", _nodes(job))
    families.add("nodes_most", "The most nodes that a round has.", job.most)
    families.add("nodes_fewest", "The fewest nodes that a round has.", job.fewest)


def _nodes(job: JobSnapshot) -> list[tuple[Labels, float]]:
    states: dict[int, AgentState] = {}
    for agent in job.agents:
        states.setdefault(agent.node, agent.state)
    found = Counter(states.values())
    return [({"state": state.name.lower()}, found[state]) for state in AgentState]


def _add_progress(families: _Families, job: JobSnapshot, at: float) -> None:
    """How far the job is. `at`: Unix time."""
    what = "The furthest step as the script counts, if it says so."
    families.add("step", what, job.step or None)
    what = "Optimizer steps in this round, of the rank that has made the most."
    families.add("round_steps", what, job.steps)
    families.add("step_duration", "A step, over the last minute.", job.pace, unit="seconds")
    if job.running:
        still = min(agent.still for agent in job.running)
        what = "When a worker was last seen to do something."
        families.add("last_progress_timestamp", what, at - still, unit="seconds")
        limit = min((agent.hang for agent in job.running if agent.hang), default=None)
        what = "How long all workers may do nothing before that is a hang."
        families.add("hang_timeout", what, limit, unit="seconds")
    what = "1 while the others wait for one rank or node, step after step."
    families.add("straggler_named", what, float(bool(job.straggler)))
    saved = job.checkpoint
    if saved is not None:
        families.add("checkpoint_step", "The newest complete checkpoint: its step.", saved.step)
        what = "The newest complete checkpoint: its size."
        families.add("checkpoint_size", what, saved.size, unit="bytes")
        what = "The newest complete checkpoint: when it was saved."
        when = None if saved.age is None else at - saved.age
        families.add("checkpoint_timestamp", what, when, unit="seconds")


def _add_ends(families: _Families, job: JobSnapshot, at: float, ended: Mapping[str, int]) -> None:
    """What has failed, and when the job ends. `at`: Unix time."""
    what, counter = "Restarts after failures.", MetricKind.COUNTER
    families.add_all("restarts", what, [({}, job.restarts)], kind=counter)
    what = "Restarts that are allowed without a new checkpoint."
    families.add("restarts_allowed", what, job.max_restarts)
    causes = dict.fromkeys((cause.value for cause in OF_ROUNDS), 0) | dict(ended)
    what = "Rounds that ended before their workers were done, by cause."
    values: list[tuple[Labels, float]] = [({"cause": c}, number) for c, number in causes.items()]
    families.add_all("round_ends", what, values, kind=counter)
    end = None if job.end is None else at + job.end
    families.add("end_timestamp", "When Slurm ends the job.", end, unit="seconds")
    given = float(job.is_notice_given)
    families.add("notice_given", "1 once the workers of this round have notice.", given)
    families.add("preempted", "1 if Slurm preempts the job.", float(job.is_preempted))
    families.add("over", "1 once it is known how the job ends.", float(job.code is not None))
    families.add("exit_code", "How the job ends, once it is known.", job.code)


def _add_ledger(families: _Families, report: JobReport) -> None:
    """Gauges: what counted as training does no more once its steps are done again."""
    families.add("begin_timestamp", "When the launch began.", report.begin, unit="seconds")
    families.add("seats", "GPUs of the job, or workers where there are none.", report.seats)
    what = "The share of training that was not in vain."
    families.add("goodput", what, report.goodput, unit="ratio")
    families.add_all(
        "seat",
        "What the seats have spent their time on: seconds times seats.",
        [({"category": c.value}, report.seconds.get(c.value, 0.0)) for c in Category],
        unit="seconds",
    )


OF_GPU: tuple[tuple[str, str, str, Callable[[GpuUse], float | None]], ...] = (
    ("gpu_busy", "ratio", "The share of the last moments in which a kernel ran.", lambda u: u.busy),
    ("gpu_memory_used", "bytes", "Memory of the GPU that is used.", lambda u: u.used),
    ("gpu_memory_size", "bytes", "Memory of the GPU.", lambda u: u.total),
    ("gpu_temperature", "celsius", "The temperature of the GPU.", lambda u: u.temperature),
    ("gpu_power", "watts", "The power of the GPU.", lambda u: u.power),
)


def _add_gpus(families: _Families, launch: LaunchSnapshot) -> None:
    """Those of this agent, with the labels that DCGM's exporter gives them."""
    gpus = [(_gpu_labels(gpu, launch.host), gpu.use) for gpu in launch.gpus]
    for name, unit, what, number in OF_GPU:
        told = [(labels, n) for labels, use in gpus if (n := number(use)) is not None]
        families.add_all(name, what, told, unit=unit)


def _gpu_labels(gpu: NodeGpu, host: str) -> Labels:
    return {"gpu": str(gpu.index), "UUID": gpu.uuid, "Hostname": host}


def _add_ranks(families: _Families, job: JobSnapshot) -> None:
    workers = [
        ({"rank": str(worker.rank), "node": agent.host}, worker)
        for agent in job.running
        for worker in agent.workers
    ]
    phases = [(labels | {"phase": worker.phase}, 1.0) for labels, worker in workers]
    families.add_all("rank_phase", "1 for what the rank does.", phases)
    steps = [(labels, worker.steps) for labels, worker in workers]
    families.add_all("rank_steps", "Steps that the rank has made in this round.", steps)
    cpus = [(labels, worker.cpu) for labels, worker in workers]
    families.add_all("rank_cpus", "CPUs that the rank uses.", cpus)
    memory = [(labels, worker.memory) for labels, worker in workers]
    families.add_all("rank_memory", "Resident memory of the rank.", memory, unit="bytes")
