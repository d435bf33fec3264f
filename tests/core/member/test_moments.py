"""The moments recorded of an agent's workers, and how often."""

from __future__ import annotations

import pytest
from story import feed, idle, running, seen

from hpclaunch.core.member.moments import GpusMoment, period
from hpclaunch.core.protocol.gpu_use import GpuUse
from hpclaunch.core.protocol.model import Doing, RankVitals

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


def moment_of_training(vitals=(), gpus=()):
    """Return a moment 12.3456 s after the round began here; the steps were read 3.2 s before."""
    member = running()
    feed(member, 10.1456, seen(steps=(5, 6), spent=(1000, 0, 2000, 4000, 145), doing=3))
    return member.work.moment(13.3456, vitals, gpus)


def test_workers_and_gpus_together():
    vitals = [RankVitals(rank, "step", 7, 1007 + rank, 1.0, 100 + rank) for rank in (2, 3)]
    gpus = [GpuUse(0.5, 10, 80, 60, 300.0), GpuUse(1.0, 30, 80, 71, 300.0)]
    moment = moment_of_training(vitals, gpus)
    assert (moment.first, moment.count, moment.elapsed) == (2, 2, 12.35)
    assert moment.spent == (2001, 1000, 0, 2000, 4000, 145, Doing.TRAINING)
    assert (moment.steps, moment.seen, moment.step) == (6, 9.15, 1010)
    assert (moment.memory, moment.largest) == (205, 103)
    assert moment.gpus == GpusMoment(2, 0.75, 0.5, 40, 160, 71)


def test_gpus_that_do_not_report_everything():
    gpus = moment_of_training((), [GpuUse(None, 10, 80, 60, 300.0)]).gpus
    assert gpus == GpusMoment(1, None, None, 10, 80, 60)


def test_nobody_has_looked():
    moment = moment_of_training()
    assert (moment.steps, moment.memory, moment.gpus) == (6, 0, None)


def test_there_is_no_moment_before_the_first_round():
    assert idle().work.moment(0.5, (), ()) is None
