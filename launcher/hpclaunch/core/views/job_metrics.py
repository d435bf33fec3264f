"""One launch as numbers for monitoring, by the conventions of Prometheus: base units, times as Unix
times, names that tell the unit, and labels with few values.

What an agent knows of its own node comes from every agent, and all that is known of the job from
the one that leads. So what a scrape costs does not grow with the job, but for what is told of each
rank, on request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from ..ledger.book import Category
from ..ledger.end_causes import OF_ROUNDS
from ..ledger.job_report import JobReport
from ..protocol.model import GpuUse
from ..protocol.stages import Stage
from ..snapshot.job_snapshot import AgentState, JobSnapshot, LaunchSnapshot, NodeGpu

PREFIX = "hpclaunch_"


class MetricKind(str, Enum):
    GAUGE = "gauge"
    COUNTER = "counter"  # its samples end in _total
    INFO = "info"  # its sample ends in _info, and is always 1


Labels = dict[str, str]


@dataclass(frozen=True, slots=True)
class MetricSample:
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric. `name` has no suffix of its kind, and ends in the unit if there is one."""

    name: str
    kind: MetricKind
    help: str
    unit: str
    samples: tuple[MetricSample, ...]


def job_metrics(
    launch: LaunchSnapshot,
    report: JobReport | None,
    ended: Mapping[str, int],
    version: str,
    *,
    ranks: bool = False,
) -> list[MetricFamily]:
    """`report`: of this launch, as long as the agent leads. `ended`: how many rounds have ended
    early, by cause. `version`: of hpclaunch. `ranks`: also tell of each rank.
    """
    common = {"hpc_job": launch.slurm_id or launch.name, "launch": launch.name}
    families = _Families(common)
    families.add(
        "leads", "1 if the agent of this node leads the job", float(launch.job is not None)
    )
    families.add("snapshot", "when all of this was so", launch.time, unit="timestamp_seconds")
    _add_gpus(families, launch)
    if launch.job is None:
        return families.found
    families.add_info("of the launch", {"version": version, "head": launch.job.head})
    _add_rounds(families, launch, launch.job)
    _add_ends(families, launch, launch.job, ended)
    if report is not None:
        _add_ledger(families, report)
    if ranks:
        _add_ranks(families, launch.job)
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
        """`unit`: the end of the name. Of a Unix time, the unit itself is only its last word."""
        samples = tuple(MetricSample(self._common | labels, value) for labels, value in values)
        if samples:
            name = PREFIX + (f"{name}_{unit}" if unit else name)
            self.found.append(MetricFamily(name, kind, what, unit.rpartition("_")[2], samples))

    def add_info(self, what: str, labels: Labels) -> None:
        samples = (MetricSample(self._common | labels, 1.0),)
        self.found.append(MetricFamily(PREFIX.rstrip("_"), MetricKind.INFO, what, "", samples))


def _add_rounds(families: _Families, launch: LaunchSnapshot, job: JobSnapshot) -> None:
    """What the job does, and how far it is."""
    at = launch.time
    families.add_all(
        "stage",
        "1 for the stage that the job is in",
        [({"stage": stage.value}, float(stage is job.stage)) for stage in Stage],
    )
    families.add("round", "the number of the last round", job.round)
    families.add("world_size", "ranks of the round; 0 between two rounds", job.ranks)
    families.add_all("nodes", "nodes by what they do in the job", _nodes(job))
    families.add("nodes_wanted", "the most nodes that a round has", job.most)
    families.add("nodes_needed", "the fewest nodes that a round has", job.fewest)
    families.add("step", "the furthest step, if the script says which one it is", job.step or None)
    families.add(
        "round_steps", "optimizer steps that the furthest rank has made in this round", job.steps
    )
    families.add("step_duration", "of a step, over the last minute", job.pace, unit="seconds")
    if job.running:
        still = min(agent.still for agent in job.running)
        families.add(
            "last_progress",
            "when a worker was last seen to do something",
            at - still,
            unit="timestamp_seconds",
        )
        limits = [agent.hang for agent in job.running if agent.hang]
        families.add(
            "hang_timeout",
            "how long all workers may do nothing before that is a hang",
            min(limits, default=None),
            unit="seconds",
        )
    families.add(
        "straggler_named", "1 while the others wait for a rank", float(bool(job.straggler))
    )
    saved = job.checkpoint
    if saved is not None:
        families.add("checkpoint_step", "of the newest complete checkpoint", saved.step)
        families.add("checkpoint_size", "of it", saved.size, unit="bytes")
        when = None if saved.age is None else at - saved.age
        families.add("checkpoint", "when it was saved", when, unit="timestamp_seconds")


def _nodes(job: JobSnapshot) -> list[tuple[Labels, float]]:
    states: dict[int, AgentState] = {}
    for agent in job.agents:
        states.setdefault(agent.node, agent.state)
    found = Counter(states.values())
    return [({"state": state.name.lower()}, found[state]) for state in AgentState]


def _add_ends(
    families: _Families, launch: LaunchSnapshot, job: JobSnapshot, ended: Mapping[str, int]
) -> None:
    """What has failed, and when all of it ends."""
    families.add_all(
        "restarts", "rounds after a failure", [({}, job.restarts)], kind=MetricKind.COUNTER
    )
    families.add(
        "max_restarts", "restarts that are allowed between two checkpoints", job.max_restarts
    )
    causes = dict.fromkeys((cause.value for cause in OF_ROUNDS), 0) | dict(ended)
    families.add_all(
        "round_ends",
        "rounds that ended before their workers were done, by cause",
        [({"cause": cause}, number) for cause, number in causes.items()],
        kind=MetricKind.COUNTER,
    )
    end = None if job.end is None else launch.time + job.end
    families.add("end", "when Slurm ends the job", end, unit="timestamp_seconds")
    given = job.notice.startswith("given")
    families.add("notice_given", "1 once the workers have had notice in this round", float(given))
    families.add("preempted", "1 if Slurm preempts the job", float(job.is_preempted))
    families.add("over", "1 once it is known how the job ends", float(job.code is not None))
    families.add("exit_code", "of the job, once it is known", job.code)


def _add_ledger(families: _Families, report: JobReport) -> None:
    """Gauges: what counted as training does no more once its steps are done again."""
    families.add("begin", "when the launch began", report.begin, unit="timestamp_seconds")
    families.add("seats", "GPUs, or workers where there are none", report.seats)
    families.add(
        "goodput", "the share of training that was not in vain", report.goodput, unit="ratio"
    )
    families.add_all(
        "seat",
        "seat seconds: on what each second of each seat was spent",
        [({"category": c.value}, report.seconds.get(c.value, 0.0)) for c in Category],
        unit="seconds",
    )


OF_GPU: tuple[tuple[str, str, str, Callable[[GpuUse], float | None]], ...] = (
    ("gpu_utilization", "ratio", "share of the last moments in which it worked", lambda u: u.busy),
    ("gpu_memory_used", "bytes", "memory that is used", lambda u: u.used),
    ("gpu_memory_size", "bytes", "memory that it has", lambda u: u.total),
    ("gpu_temperature", "celsius", "its temperature", lambda u: u.temperature),
    ("gpu_power", "watts", "its power", lambda u: u.power),
)


def _add_gpus(families: _Families, launch: LaunchSnapshot) -> None:
    """Those of this agent, with the labels that DCGM's exporter gives them."""
    gpus = [(_gpu_labels(gpu, launch.host), gpu.use) for gpu in launch.gpus]
    for name, unit, what, value in OF_GPU:
        told = [(labels, v) for labels, use in gpus if (v := value(use)) is not None]
        families.add_all(name, what, told, unit=unit)


def _gpu_labels(gpu: NodeGpu, host: str) -> Labels:
    return {"gpu": str(gpu.index), "UUID": gpu.uuid, "Hostname": host}


def _add_ranks(families: _Families, job: JobSnapshot) -> None:
    workers = [
        ({"rank": str(worker.rank), "node": agent.host}, worker)
        for agent in job.running
        for worker in agent.workers
    ]
    families.add_all(
        "rank_phase", "1 for what the rank does", [(w | {"phase": v.phase}, 1) for w, v in workers]
    )
    families.add_all(
        "rank_steps", "steps that it has made in this round", [(w, v.steps) for w, v in workers]
    )
    families.add_all("rank_cpus", "CPUs that it uses", [(w, v.cpu) for w, v in workers])
    families.add_all(
        "rank_memory", "that is resident", [(w, v.memory) for w, v in workers], unit="bytes"
    )
