"""The moments recorded of an agent's workers, and how often."""

from __future__ import annotations

import pytest

from hpclaunch.core.member.moments import GpusMoment, of_workers, period
from hpclaunch.core.protocol.gpu_use import GpuUse
from hpclaunch.core.protocol.model import RankVitals

MINUTE, HOUR, DAY = 60, 3600, 86400


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


def test_gpus_that_do_not_report_everything():
    gpus = of_workers(0, 1, 1.0, (), (), 0.0, (), [GpuUse(None, 10, 80, 60, 300.0)]).gpus
    assert gpus == GpusMoment(1, None, None, 10, 80, 60)


def test_nobody_has_looked():
    moment = of_workers(0, 2, 1.0, (), (8, 9), 0.5)
    assert (moment.steps, moment.memory, moment.gpus) == (9, 0, None)
