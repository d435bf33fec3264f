"""One line on a terminal: what a job waits for before its first step."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.protocol.job_snapshot import AgentSnapshot, AgentState, JobSnapshot
from ..core.protocol.stages import Stage
from ..core.protocol.wording import count, some
from .text_style import TextStyle, duration

NAMES = 4
# The phases of workers before their first step, in order, with their names in the line.
PHASE_NAMES = {
    "start": "starting",
    "imports": "imports",
    "rendezvous": "rendezvous",
    "loading": "first step",
}


def live_line(job: JobSnapshot, style: TextStyle) -> str:
    """Return the line; "" if the workers make steps, or if their phase is not known."""
    what = _what(job)
    return style.line(f"{what} ({duration(job.entered)})") if what else ""


def _what(job: JobSnapshot) -> str:
    if job.is_flushing:
        return "copying checkpoints to storage"
    match job.stage:
        case Stage.RENDEZVOUS:
            return _rendezvous(job)
        case Stage.CHOOSING:
            return "choosing a checkpoint"
        case Stage.RUNNING:
            return _round(job)
        case Stage.STOPPING:
            return "stopping the workers"
    return ""


def _rendezvous(job: JobSnapshot) -> str:
    missing = [a for a in job.agents if a.state in (AgentState.ABSENT, AgentState.LOST)]
    nodes = {agent.node for agent in job.agents}
    if missing:
        absent = {agent.node for agent in missing}
        return f"waiting for {len(absent)} of {count(len(nodes), 'node')}: {_hosts(missing)}"
    stopping = [agent for agent in job.agents if agent.state is AgentState.STOPPING]
    if stopping:
        return f"waiting for the last workers on {_hosts(stopping)}"
    return f"preparing {count(len(nodes), 'node')}"


def _round(job: JobSnapshot) -> str:
    """Return the phases of the workers. Workers that have not imported torch are reported as
    training, so the line leaves them out.
    """
    agents = {each: [agent for agent in job.running if agent.doing == each] for each in PHASE_NAMES}
    known = {each: found for each, found in agents.items() if found}
    if job.steps or not known:
        return ""
    ranks = count(job.ranks, "rank")
    everywhere = [each for each, found in known.items() if len(found) == len(job.running)]
    if everywhere:
        return f"{ranks}: {PHASE_NAMES[everywhere[0]]}"
    parts = (f"{PHASE_NAMES[each]} on {_hosts(found)}" for each, found in known.items())
    return f"{ranks}: {', '.join(parts)}"


def _hosts(agents: Sequence[AgentSnapshot]) -> str:
    return some((agent.host for agent in agents), NAMES)
