"""Metrics of one launch, by the conventions of Prometheus: base units, Unix times, names that end
in the unit, and labels with few values.

Every agent offers the metrics of its node, and the head also those of the job. None is of a single
rank, so the size of a scrape does not grow with the job.
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

PREFIX = "hpclaunch"


def job_metrics(
    launch: LaunchSnapshot,
    report: JobReport | None,
    ended: Mapping[str, int],
    version: str,
) -> list[MetricFamily]:
    """Return the metrics. `report` is that of the launch, if this agent leads. `ended` has the
    number of rounds that ended early, by cause. `version` is hpclaunch's.
    """
    job = launch.job
    families = _Families({"hpc_job": launch.slurm_id or launch.name, "launch": launch.name})
    agent = {"agent": str(launch.agent)}  # several of a node may write into one directory
    leads = [(agent, float(job is not None))]
    families.add("leads", "1 if this agent leads the job.", leads)
    what = "When these metrics were taken."
    families.add("snapshot_timestamp", what, [(agent, launch.time)], "seconds")
    _add_gpus(families, launch)
    if job is None:
        return families.found
    labels = {"version": version, "head": job.head}
    families.add("", "The launch.", [(labels, 1.0)], kind=MetricKind.INFO)
    _add_rounds(families, job)
    _add_progress(families, job, launch.time)
    _add_ends(families, job, launch.time, ended)
    if report is not None:
        _add_ledger(families, report)
    return families.found


class _Families:
    """The metrics so far, all with the `common` labels."""

    def __init__(self, common: Labels) -> None:
        self._common = common
        self.found: list[MetricFamily] = []

    def add(
        self,
        name: str,
        what: str,
        values: float | Iterable[tuple[Labels, float]] | None,
        unit: str = "",
        kind: MetricKind = MetricKind.GAUGE,
    ) -> None:
        """Add a metric with one value, or with several by their labels; none if there is no value.
        The unit becomes the end of the name.
        """
        if isinstance(values, int | float):
            values = [({}, float(values))]
        samples = tuple(MetricSample(self._common | labels, v) for labels, v in values or ())
        if samples:
            name = "_".join(filter(None, (PREFIX, name, unit)))
            self.found.append(MetricFamily(name, kind, what, unit, samples))


def _add_rounds(families: _Families, job: JobSnapshot) -> None:
    """Add the stage, the round and the nodes."""
    stages = [({"stage": stage.value}, float(stage is job.stage)) for stage in Stage]
    families.add("stage", "1 for the stage that the job is in.", stages)
    families.add("round", "The number of the last round.", job.round)
    families.add("world_size", "Ranks of the round; 0 between two rounds.", job.ranks)
    families.add("nodes", "Nodes, by what they do in the job.", _nodes(job))
    families.add("nodes_most", "The most nodes that a round has.", job.most)
    families.add("nodes_fewest", "The fewest nodes that a round has.", job.fewest)


def _nodes(job: JobSnapshot) -> list[tuple[Labels, float]]:
    states: dict[int, AgentState] = {}
    for agent in job.agents:
        states.setdefault(agent.node, agent.state)
    found = Counter(states.values())
    return [({"state": state.name.lower()}, found[state]) for state in AgentState]


def _add_progress(families: _Families, job: JobSnapshot, at: float) -> None:
    """Add the progress and the newest checkpoint. `at` is the Unix time."""
    families.add("step", "The furthest step as the script counts, if it says so.", job.step or None)
    what = "Optimizer steps in this round, of the rank that has made the most."
    families.add("round_steps", what, job.steps)
    families.add("step_duration", "A step, over the last minute.", job.pace, "seconds")
    if job.running:
        what = "When a worker last showed a sign of life."
        families.add("last_progress_timestamp", what, at - job.still, "seconds")
        what = "After this time without a sign of life of any worker, the round hangs."
        families.add("hang_timeout", what, job.hang_limit, "seconds")
    what = "1 while the others wait for one rank or node, step after step."
    families.add("straggler_named", what, bool(job.straggler))
    if (saved := job.checkpoint) is not None:
        families.add("checkpoint_step", "The step of the newest complete checkpoint.", saved.step)
        what = "The size of the newest complete checkpoint."
        families.add("checkpoint_size", what, saved.size, "bytes")
        what = "When the newest complete checkpoint was saved."
        when = None if saved.age is None else at - saved.age
        families.add("checkpoint_timestamp", what, when, "seconds")


def _add_ends(families: _Families, job: JobSnapshot, at: float, ended: Mapping[str, int]) -> None:
    """Add the failures and the end of the job. `at` is the Unix time."""
    counter = MetricKind.COUNTER
    families.add("restarts", "Restarts after failures.", job.restarts, kind=counter)
    what = "Restarts that are allowed without a new checkpoint."
    families.add("restarts_allowed", what, job.max_restarts)
    causes = dict.fromkeys((cause.value for cause in OF_ROUNDS), 0) | dict(ended)
    what = "Rounds that ended before their workers were done, by cause."
    values: list[tuple[Labels, float]] = [({"cause": c}, number) for c, number in causes.items()]
    families.add("round_ends", what, values, kind=counter)
    end = None if job.end is None else at + job.end
    families.add("end_timestamp", "When Slurm ends the job.", end, "seconds")
    what = "1 once the workers of this round have notice."
    families.add("notice_given", what, job.is_notice_given)
    families.add("preempted", "1 if Slurm preempts the job.", job.is_preempted)
    families.add("over", "1 once it is known how the job ends.", job.code is not None)
    families.add("exit_code", "The exit code of the job, once it is known.", job.code)


def _add_ledger(families: _Families, report: JobReport) -> None:
    """Add the ledger, as gauges: training time shrinks when steps turn out to be done twice."""
    families.add("begin_timestamp", "When the launch began.", report.begin, "seconds")
    families.add("seats", "GPUs of the job, or workers where there are none.", report.seats)
    what = "The share of GPU time that was training whose steps were not lost."
    families.add("goodput", what, report.goodput, "ratio")
    what = "What the seats have spent their time on: seconds times seats."
    values = [({"category": c.value}, report.seconds.get(c.value, 0.0)) for c in Category]
    families.add("seat", what, values, "seconds")


def _used(use: GpuUse) -> float | None:
    return use.used if use.total else None


OF_GPU: tuple[tuple[str, str, str, Callable[[GpuUse], float | None]], ...] = (
    ("gpu_busy", "ratio", "The share of the last moments in which a kernel ran.", lambda u: u.busy),
    ("gpu_memory_used", "bytes", "Memory of the GPU that is used.", _used),
    ("gpu_memory_size", "bytes", "Memory of the GPU.", lambda u: u.total or None),
    ("gpu_temperature", "celsius", "The temperature of the GPU.", lambda u: u.temperature or None),
    ("gpu_power", "watts", "The power of the GPU.", lambda u: u.power or None),
)


def _add_gpus(families: _Families, launch: LaunchSnapshot) -> None:
    """Add the GPUs of this agent, with the labels of DCGM's exporter and its own."""
    gpus = [(_gpu_labels(gpu, launch), gpu.use) for gpu in launch.gpus]
    for name, unit, what, number in OF_GPU:
        values = [(labels, n) for labels, use in gpus if (n := number(use)) is not None]
        families.add(name, what, values, unit)


def _gpu_labels(gpu: NodeGpu, launch: LaunchSnapshot) -> Labels:
    own = {"gpu": str(gpu.index), "UUID": gpu.uuid, "Hostname": launch.host}
    return own | {"agent": str(launch.agent)}  # agents may share a GPU
