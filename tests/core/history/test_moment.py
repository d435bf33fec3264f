"""What is noted, how often, and how the states of many agents are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpclaunch.core.history.moment import (
    GpusMoment,
    SavedMoment,
    of_job,
    of_workers,
    period,
    states_of,
    written,
)
from hpclaunch.core.protocol.gpu_use import GpuUse
from hpclaunch.core.protocol.model import RankVitals
from hpclaunch.core.protocol.stages import Stage
from hpclaunch.core.snapshot.job_snapshot import AgentSnapshot, AgentState, JobSnapshot

MINUTE, HOUR, DAY = 60, 3600, 86400
RUNNING, SPARE, LOST = AgentState.RUNNING, AgentState.SPARE, AgentState.LOST


@given(st.lists(st.sampled_from(AgentState)))
def test_states_are_read_as_they_were_written(states):
    assert states_of(written(states)) == states


@pytest.mark.parametrize(
    ("states", "text"),
    [([], ""), ([RUNNING], "R"), ([RUNNING] * 62 + [LOST, SPARE, SPARE], "62RL2S")],
)
def test_states_are_short(states, text):
    assert written(states) == text


def test_states_of_another_version_are_left_out():
    assert states_of("2RZ3?S") == [RUNNING, RUNNING, SPARE]


@pytest.mark.parametrize(
    ("age", "agents", "seconds"),
    [
        pytest.param(0, 1, 5, id="its first minute"),
        pytest.param(100, 1, 20, id="a young job"),
        pytest.param(HOUR, 1, 120, id="an hour"),
        pytest.param(30 * DAY, 1, 300, id="weeks"),
        pytest.param(0, 1024, 64, id="many agents, which write to one file system"),
    ],
)
def test_the_older_a_job_the_less_often(age, agents, seconds):
    assert period(age, agents) == seconds


@pytest.mark.parametrize(
    ("age", "most"), [(HOUR, 100), (DAY, 390), (7 * DAY, 2300), (30 * DAY, 10_000)]
)
def test_a_job_of_weeks_notes_a_bounded_number(age, most):
    at, number = 0.0, 0
    while at < age:
        at, number = at + period(at, 1), number + 1
    assert number < most


def test_workers_and_gpus_together():
    vitals = [RankVitals(rank, "step", 7, 1007 + rank, 1.0, 100 + rank) for rank in (4, 5)]
    gpus = [GpuUse(0.5, 10, 80, 60, 300.0), GpuUse(1.0, 30, 80, 71, 300.0)]
    moment = of_workers(4, 2, 12.3456, (0, 1, 2, 3, 4, 5, 4), (6,), 9.0, vitals, gpus)
    assert (moment.first, moment.count, moment.elapsed) == (4, 2, 12.35)
    assert (moment.steps, moment.seen, moment.step) == (6, 9.0, 1012)
    assert (moment.memory, moment.largest) == (209, 105)
    assert moment.gpus == GpusMoment(2, 0.75, 0.5, 40, 160, 71)


def test_gpus_that_do_not_tell():
    gpus = of_workers(0, 1, 1.0, (), (), 0.0, (), [GpuUse(None, 10, 80, 60, 300.0)]).gpus
    assert gpus == GpusMoment(1, None, None, 10, 80, 60)


def test_nobody_has_looked():
    moment = of_workers(0, 2, 1.0, (), (8, 9), 0.5)
    assert (moment.steps, moment.memory, moment.gpus) == (9, 0, None)


def test_the_hosts_of_a_job_are_only_noted_once():
    agents = tuple(AgentSnapshot(i, i, f"n{i}", state) for i, state in enumerate((RUNNING, LOST)))
    snapshot = JobSnapshot(Stage.RUNNING, 1, "n0", 1, 0, 1, "", 2, 2, 0, 3, agents)
    saved = SavedMoment(1.0, 10, 100)
    first = of_job(snapshot, saved, is_first=True)
    assert (first.states, first.saved, first.hosts) == ("RL", saved, ("n0", "n1"))
    assert of_job(snapshot, saved, is_first=False).hosts == ()
