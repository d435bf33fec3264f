"""Jobs that come to their end: how their stories begin, and what agents and workers do then."""

from __future__ import annotations

from crew import Crew
from story import seen

from hpclaunch.core.ending.table import ENDS
from hpclaunch.core.protocol.events import NoticeTaken, Signalled, WorkerExited, WorkersGone
from hpclaunch.core.protocol.job_state import JobState
from hpclaunch.core.protocol.model import REQUEUED_ENDS, Requeueing

USR1, USR2, TERM = 10, 12, 15
# Beats are rare here: most of these stories last minutes.
SETTINGS = {"slurm_id": "7", "grace": 20.0, "notice": 30.0, "saves": True, "beat": 2.0}
REQUEUED = Requeueing(REQUEUED_ENDS, most=5)


def training(hosts="n0 n1", *, ends_at=300.0, steps=100, save_took=0.0, **settings):
    """Start two agents with two workers each, all at the same step, of a job that Slurm ends."""
    crew = Crew(hosts, **SETTINGS | settings)
    crew.ends_at, crew.save_took = ends_at, save_took
    agents = range(len(hosts.split()))
    crew.steps = dict.fromkeys(agents, (steps, steps) if steps else ())
    crew.start(*agents)
    crew.until(2.0)
    for agent in agents:
        crew.feed(agent, seen(steps=(steps, steps)))
    return crew


def given(crew):
    """Return the steps of the notices that each agent was given."""
    return {agent: [n.step for n in notices] for agent, notices in sorted(crew.notices.items())}


def said(crew, words):
    return [line for line in crew.said if words in line]


def preempt(crew, ends_at, agents=(0, 1)):
    """Let Slurm send SIGTERM to all processes, workers included, and end the job at `ends_at`."""
    crew.ends_at, crew.state = ends_at, JobState.PREEMPTED
    for agent in agents:
        crew.feed(agent, Signalled(TERM))


def take(crew, *, last=False):
    for agent, notices in crew.notices.items():
        crew.feed(agent, NoticeTaken(notices[-1].number, last))


def leave(crew, code=0, agents=None):
    """End all workers."""
    for agent in list(crew.agents if agents is None else agents):
        first = 2 * agent
        for rank in (first, first + 1):
            crew.feed(agent, WorkerExited(rank, code, 0))
        crew.running.pop(agent, None)
        crew.feed(agent, WorkersGone())


def verdict(crew):
    (one,) = set(crew.verdicts.values())
    return one


def kind(crew):
    return ENDS[verdict(crew).origin].kind
