"""The screen of one launch: its state, its progress, its failures, and its nodes or ranks; and the
list of several launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from ..core.member.moments import of_gpus
from ..core.protocol import ranges
from ..core.protocol.gpu_use import GpuUse
from ..core.protocol.job_snapshot import AgentSnapshot, AgentState, JobSnapshot, LaunchSnapshot
from ..core.protocol.model import RankVitals
from ..core.protocol.stages import Stage
from ..core.protocol.values import replace, value
from ..core.protocol.wording import count, plain, size, some
from .text_style import Cell, Colour, TextStyle, duration, gib, rate, short_rate

FEW_RANKS = 8  # shown one by one
MOST_ROWS, MOST_TROUBLE = 16, 5  # nodes
MOST_PAST = 3  # rounds
NAMES = 6
STILL = 3.0  # seconds without a sign of life that are worth a line: a short pause is not
COLOURS = {
    AgentState.RUNNING: Colour.GOOD,
    AgentState.DONE: Colour.GOOD,
    AgentState.LOST: Colour.BAD,
    AgentState.CORDONED: Colour.BAD,
    AgentState.ABSENT: Colour.WARNING,
    AgentState.STOPPING: Colour.WARNING,
}
DOES = {
    Stage.RENDEZVOUS: "waiting for nodes",
    Stage.CHOOSING: "choosing a checkpoint",
    Stage.STOPPING: "stopping the workers",
    Stage.ENDING: "ending",
}
UNKNOWN = "-"


@value(frozen=True)
class RankRow:
    rank: int
    host: str
    step: int
    worker: RankVitals | None
    gpus: Sequence[GpuUse]

    @classmethod
    def of(cls, agent: AgentSnapshot, local: int) -> RankRow:
        rank = agent.first_rank + local
        worker = next((w for w in agent.workers if w.rank == rank), None)
        steps = agent.steps[local] if len(agent.steps) > local else max(agent.steps, default=0)
        step = (worker.step or worker.steps) if worker is not None else steps
        positions = agent.gpus_of[local] if local < len(agent.gpus_of) else ()
        own = [agent.gpus[i] for i in positions if i < len(agent.gpus)]
        return cls(rank, agent.host, step, worker, own)


def job_screen(launch: LaunchSnapshot, style: TextStyle) -> list[str]:
    """Return the lines of the screen, none wider than the style allows."""
    job, lines = launch.job, head_lines(launch, style)
    if job is None or not job.ranks:
        return lines
    table = ranks_table if job.ranks <= FEW_RANKS else nodes_table
    return [*lines, "", *table(job, style)]


def led_from(launch: LaunchSnapshot) -> str:
    """Say where the head of a job is, if another agent answers."""
    return f"is led from {launch.head}" if launch.head else "has no head at the moment"


def head_lines(launch: LaunchSnapshot, style: TextStyle) -> list[str]:
    """Return the lines above the table."""
    launch = _as_of_now(launch)
    job = launch.job
    if job is None:
        return [style.line((launch.name, Colour.STRONG), f": it {led_from(launch)}")]
    lines = [_title(launch, job, style)]
    if launch.old is not None:
        text = f"  as it was {duration(launch.old)} ago: the job no longer answers"
        lines.append(style.line((text, Colour.WARNING)))
    lines += [style.line(f"  {text}") for text in _facts(job)]
    lines += [style.line("  ", (text, Colour.WARNING)) for text in _warnings(job)]
    lines += [
        style.line("  ", (text, Colour.BAD if is_fault else Colour.FAINT))
        for text, is_fault in _past(job)
    ]
    lines += [style.line(f"  logs {launch.logs}")]
    return lines + [style.line("  ", (text, colour)) for text, colour in _without_ranks(job)]


def _as_of_now(launch: LaunchSnapshot) -> LaunchSnapshot:
    """Bring the times of an old snapshot up to now, if the job has ended: nothing else changes."""
    job, old = launch.job, launch.old
    if job is None or old is None or job.stage is not Stage.ENDED:
        return launch
    saved = job.checkpoint
    if saved is not None and saved.age is not None:
        saved = replace(saved, age=saved.age + old)
    past = tuple(replace(each, ended=each.ended + old) for each in job.past)
    now = replace(job, entered=job.entered + old, past=past, checkpoint=saved)
    return replace(launch, job=now, old=None)


def doing(job: JobSnapshot) -> str:
    """Return what the job does, in a few words."""
    if job.stage is Stage.ENDED:
        return f"ended {duration(job.entered)} ago"
    if job.is_flushing:
        return f"copying checkpoints to storage for {duration(job.entered)}"
    if job.stage is not Stage.RUNNING:
        return f"{DOES[job.stage]} for {duration(job.entered)}"
    return f"running for {duration(job.begun or 0.0)}"


def ending(job: JobSnapshot) -> str:
    """Return the exit code of the job and the reason; "" until that is known."""
    ends = "ended" if job.stage is Stage.ENDED else "ends"
    return f"{ends} with code {job.code}: {job.verdict}" if job.verdict else ""


def how_far(job: JobSnapshot) -> str:
    """Return the step as the script counts, or else how many steps this round has made."""
    if job.step:
        return f"step {job.step:,}"
    steps = "step" if job.steps == 1 else "steps"
    return f"{job.steps:,} {steps} in this round" if job.steps else ""


def _title(launch: LaunchSnapshot, job: JobSnapshot, style: TextStyle) -> str:
    colour = Colour.GOOD if job.stage is Stage.RUNNING else Colour.WARNING
    used = f"{job.spent} of {count(job.max_restarts, 'restart')}" if job.restarts else ""
    facts = [f"round {job.round}", used, f"head {job.head}"]
    rest = " · ".join(filter(None, facts))
    return style.line((launch.name, Colour.STRONG), "  ", (doing(job), colour), f" · {rest}")


def _facts(job: JobSnapshot) -> Iterable[str]:
    nodes = len({agent.node for agent in job.running})
    parts = [count(nodes, "node"), count(job.ranks, "rank")] if nodes else []
    if parts:
        steps = [step] if (step := how_far(job)) else []
        steps += [rate(job.pace)] if job.pace else []
        yield " · ".join([*parts, *(steps or _phases(job))])
    if job.checkpoint is not None:
        saved = job.checkpoint
        known = [] if saved.step is None else [f"step {saved.step:,}"]
        known += [size(saved.size)] if saved.size else []
        known += [f"{duration(saved.age)} old"] if saved.age is not None else []
        yield f"checkpoint {' · '.join([*known, saved.path])}"
        if saved.stored not in (None, saved.path):
            yield f"on storage {saved.stored or 'none yet'}"
    if job.goodput is not None:
        yield f"goodput {job.goodput:.1%}"
    if job.end is not None and job.stage is not Stage.ENDED:
        what = "preempted: it ends" if job.is_preempted else "Slurm ends the job"
        yield f"{what} in {duration(job.end)}"
    if job.notice:
        yield f"notice {job.notice}"


def _phases(job: JobSnapshot) -> list[str]:
    """Return how many ranks are in each phase, for a round without steps."""
    phases = sorted(worker.phase for agent in job.running for worker in agent.workers)
    return [f"{len(list(same))} in {phase}" for phase, same in groupby(phases)]


def _warnings(job: JobSnapshot) -> Iterable[str]:
    if text := ending(job):
        yield text
    if job.still >= STILL:
        limit = job.hang_limit
        then = "" if limit is None else f"; after {duration(limit)} that is a hang"
        yield f"no worker has done anything for {duration(job.still)}{then}"
    if job.straggler:
        yield f"the others wait for {job.straggler}, step after step"


def _past(job: JobSnapshot) -> Iterable[tuple[str, bool]]:
    for past in reversed(job.past[-MOST_PAST:]):
        yield f"round {past.round} ended {duration(past.ended)} ago: {past.why}", past.is_fault


def _without_ranks(job: JobSnapshot) -> Iterable[tuple[str, Colour]]:
    """Yield the agents without ranks: nodes with trouble one by one, the others by their state."""
    others = [agent for agent in job.agents if not agent.ranks]
    trouble: dict[int, AgentSnapshot] = {}
    for agent in others:
        if agent.why and len(trouble) < MOST_TROUBLE:
            trouble.setdefault(agent.node, agent)
    for agent in trouble.values():
        lost = agent.state is AgentState.LOST
        yield agent.why if lost else f"{agent.host} is cordoned: {agent.why}", Colour.BAD
    for state in AgentState:
        alike = [agent for agent in others if agent.state is state]
        hosts = [agent.host for agent in alike if not (agent.why and agent.node in trouble)]
        is_over = state is AgentState.LEFT and job.stage is Stage.ENDED  # all of them have left
        if hosts and not is_over:
            yield f"{state.value}: {some(hosts, NAMES)}", COLOURS.get(state, Colour.FAINT)


# Tables


def nodes_table(job: JobSnapshot, style: TextStyle, most: int = MOST_ROWS) -> list[str]:
    """Return a row for each agent with ranks. Rows beyond `most` become one line (0: no limit)."""
    agents = job.running
    shown = agents[:most] if most and len(agents) > most + 1 else agents
    gpus = any(agent.gpus for agent in agents)
    titles = ["node", "state", "ranks", _steps(job), "cpu", "memory"]
    titles += ["gpus", ""] if gpus else [""]
    rows = [_node_row(agent, gpus=gpus) for agent in shown]
    lines = style.table(titles, rows, "lllrrr")
    left = agents[len(shown) :]
    if left:
        states = sorted(agent.state.value for agent in left)
        counts = ", ".join(f"{len(list(same))} {state}" for state, same in groupby(states))
        lines.append(style.line((f"and {len(left)} more: {counts}", Colour.FAINT)))
    return lines


def _steps(job: JobSnapshot) -> str:
    """Return the title of the column: "step" as the script counts, or "steps" of this round."""
    return "step" if job.step else "steps"


def _node_row(agent: AgentSnapshot, *, gpus: bool) -> list[Cell]:
    colour, state = COLOURS.get(agent.state), agent.state.value
    ranks = range(agent.first_rank, agent.first_rank + agent.ranks)
    workers = agent.workers
    row: list[Cell] = [
        agent.host,
        state if colour is None else (state, colour),
        ranges.written(ranks) if agent.ranks else "",
        f"{made:,}" if (made := agent.step or agent.made) else "",
        f"{sum(w.cpu for w in workers):.0%}" if workers else "",
        gib(sum(w.memory for w in workers)) if workers else "",
    ]
    return [*row, *([_gpus(agent.gpus)] if gpus else []), _together(workers)]


def _together(workers: Sequence[RankVitals]) -> str:
    """Return the phases of workers, other than the usual ones."""
    phases = sorted({worker.phase for worker in workers} - {"step", "start"})
    return ", ".join(phases)


def _gpus(gpus: Sequence[GpuUse]) -> str:
    if not gpus:
        return ""
    seen = of_gpus(gpus)
    share = "" if seen.busy is None else f"{100 * seen.busy:.0f}% "
    warm = f" {seen.temperature}C" if seen.temperature else ""
    return f"{share}{gib(seen.used)}/{gib(seen.total)}{warm}"


def ranks_table(
    job: JobSnapshot, style: TextStyle, key: Callable[[RankRow], float] | None = None
) -> list[str]:
    """Return a row for each rank, in the order of the agents or of the `key`."""
    gpus = any(agent.gpus for agent in job.agents)
    titles = ["rank", "node", "phase", _steps(job), "cpu", "memory", *(["gpus"] if gpus else [])]
    ranks = [RankRow.of(agent, local) for agent in job.running for local in range(agent.ranks)]
    rows = [_rank_row(rank, gpus=gpus) for rank in (sorted(ranks, key=key) if key else ranks)]
    return style.table(titles, rows, "rllrrr")


def _rank_row(row: RankRow, *, gpus: bool) -> list[Cell]:
    worker = row.worker
    cells: list[Cell] = [
        str(row.rank),
        row.host,
        worker.phase if worker is not None else UNKNOWN,
        f"{row.step:,}" if row.step else UNKNOWN,
        f"{worker.cpu:.0%}" if worker is not None else UNKNOWN,
        gib(worker.memory) if worker is not None else UNKNOWN,
    ]
    return [*cells, *([_gpus(row.gpus)] if gpus else [])]


# Several launches


def job_list(
    launches: Sequence[LaunchSnapshot], others: Sequence[tuple[str, str]], style: TextStyle
) -> list[str]:
    """Return the lines. `others` are jobs that do not answer: their names, and what is known."""
    rows: list[list[Cell]] = [_row(launch) for launch in launches]
    rows += [[name, "", "", "", "", (what, Colour.FAINT)] for name, what in others]
    titles = ("job", "ranks", "steps", "pace", "checkpoint", "does")
    return style.table(titles, rows, "lrrrrl")


def _row(launch: LaunchSnapshot) -> list[Cell]:
    job = launch.job
    if job is None:
        return [launch.name, "", "", "", "", led_from(launch)]
    age = None if job.checkpoint is None else job.checkpoint.age
    return [
        launch.name,
        str(job.ranks or ""),
        f"{job.step or job.steps:,}" if job.steps else "",
        short_rate(job.pace) if job.pace else "",
        "" if age is None else f"{duration(age)} old",
        doing(job),
    ]


def job_line(launch: LaunchSnapshot) -> str:
    """Return the line of a launch without columns, for a file."""
    launch = _as_of_now(launch)
    job = launch.job
    if job is None:
        return f"{launch.name}: it {led_from(launch)}"
    facts = [doing(job), f"round {job.round}", count(job.ranks, "rank") if job.ranks else ""]
    facts += [how_far(job), rate(job.pace) if job.pace else "", ending(job)]
    is_silent = launch.old is not None and job.stage is not Stage.ENDED
    facts += ["no longer answers" if is_silent else ""]
    return plain(f"{launch.name}: {', '.join(filter(None, facts))}")
