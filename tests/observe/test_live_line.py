"""The line that shows what a job waits for."""

from __future__ import annotations

import pytest

from hpclaunch.core.protocol.job_snapshot import AgentSnapshot, AgentState, JobSnapshot
from hpclaunch.core.protocol.stages import Stage
from hpclaunch.core.protocol.values import replace
from hpclaunch.observe.live_line import live_line
from hpclaunch.observe.text_style import TextStyle


def agents(*states, doing=()):
    """One on each node, with two ranks if it says what its workers do."""
    found = [AgentSnapshot(n, n, f"n{n + 1}", state) for n, state in enumerate(states)]
    return tuple(
        replace(agent, ranks=2, doing=each)
        for agent, each in zip(found, doing or [""] * len(found), strict=True)
    )


def job(stage, *states, doing=(), **more):
    known = dict.fromkeys(("term", "round", "restarts"), 0) | {"resumed": "", "begun": None}
    known |= {"fewest": 2, "most": 2, "max_restarts": 3, "head": "n1"}
    known |= {"stage": stage, "entered": 12.3, "agents": agents(*states, doing=doing)}
    return JobSnapshot(**known | more)


HERE, ABSENT, LOST, STOPPING, RUNS = (
    AgentState.READY,
    AgentState.ABSENT,
    AgentState.LOST,
    AgentState.STOPPING,
    AgentState.RUNNING,
)
CASES = [
    (
        job(Stage.RENDEZVOUS, HERE, HERE, ABSENT, ABSENT),
        "waiting for 2 of 4 nodes: n3, n4 (12 s)",
    ),
    (
        job(Stage.RENDEZVOUS, HERE, *[ABSENT] * 6),
        "waiting for 6 of 7 nodes: n2, n3, n4, n5 and 2 more (12 s)",
    ),
    (job(Stage.RENDEZVOUS, HERE, LOST), "waiting for 1 of 2 nodes: n2 (12 s)"),
    (job(Stage.RENDEZVOUS, HERE, STOPPING), "waiting for the last workers on n2 (12 s)"),
    (job(Stage.RENDEZVOUS, HERE, HERE), "preparing 2 nodes (12 s)"),
    (job(Stage.CHOOSING, HERE), "choosing a checkpoint (12 s)"),
    (job(Stage.RUNNING, RUNS, RUNS, doing=["imports"] * 2), "4 ranks: imports (12 s)"),
    (
        job(Stage.RUNNING, *[RUNS] * 3, doing=["rendezvous", "imports", "rendezvous"]),
        "6 ranks: imports on n2, rendezvous on n1, n3 (12 s)",
    ),
    (job(Stage.RUNNING, RUNS, doing=["loading"]), "2 ranks: first step (12 s)"),
    (
        job(Stage.RUNNING, *[RUNS] * 2, doing=["rendezvous", "training"]),
        "4 ranks: rendezvous on n1 (12 s)",
    ),
    (job(Stage.RUNNING, RUNS, doing=["training"]), ""),
    (job(Stage.RUNNING, RUNS, doing=[""]), ""),
    (job(Stage.RUNNING), ""),
    (job(Stage.STOPPING, STOPPING), "stopping the workers (12 s)"),
    (job(Stage.ENDING, HERE), ""),
]


@pytest.mark.parametrize(("snapshot", "line"), CASES)
def test_what_is_said(snapshot, line):
    assert live_line(snapshot, TextStyle()) == line


def test_once_there_are_steps_nothing_is_said():
    snapshot = job(Stage.RUNNING, RUNS, doing=["loading"])
    snapshot = replace(snapshot, agents=(replace(snapshot.agents[0], steps=(1,)),))
    assert live_line(snapshot, TextStyle()) == ""


def test_a_narrow_terminal():
    text = live_line(job(Stage.CHOOSING, HERE), TextStyle(12))
    assert text == "choosing a …"
