"""Stories of the end of a job whose script saves in memory: the job waits for the copies."""

from __future__ import annotations

import math

import pytest
from endings import TERM, given, leave, preempt, said, take, training, verdict

from hpclaunch.core.protocol.events import (
    CheckpointDrained,
    Signalled,
    StageFlushed,
    WorkerExited,
)
from hpclaunch.core.protocol.model import (
    EXIT_LOST,
    EXIT_SAVED,
    REQUEUED_ENDS,
    Origin,
    Requeueing,
    Sequel,
)
from hpclaunch.observe.job_screen import doing
from hpclaunch.observe.live_line import live_line
from hpclaunch.observe.text_style import TextStyle

LOST = StageFlushed(("ckpt/step-9.pt",), loses_checkpoint=True)
STAGING = {"stages": True, "max_restarts": 0}


def test_a_job_that_is_done_ends_once_all_is_on_storage():
    crew = training("n0", **STAGING)
    leave(crew)
    crew.until(100.0)
    assert (crew.verdicts, crew.flush_until) == ({}, [300.0 - 3.0])
    snapshot = crew.agents[0].snapshot(crew.now)
    assert snapshot is not None
    assert live_line(snapshot, TextStyle()) == "copying checkpoints to storage (1 m 38 s)"
    assert doing(snapshot) == "copying checkpoints to storage for 1 m 38 s"
    crew.feed(0, StageFlushed())
    assert verdict(crew).origin is Origin.DONE


def test_it_fails_if_something_is_lost():
    crew = training("n0", **STAGING)
    leave(crew)
    crew.feed(0, LOST)
    assert (verdict(crew).code, verdict(crew).origin) == (EXIT_LOST, Origin.TROUBLE)
    assert (
        verdict(crew).reason == "all workers ended with 0, but ckpt/step-9.pt did not reach storage"
    )


def test_one_that_has_failed_keeps_its_exit_code():
    crew = training("n0", **STAGING)
    leave(crew, code=3)
    assert crew.verdicts == {}
    crew.feed(0, LOST)
    assert (verdict(crew).code, verdict(crew).origin) == (3, Origin.FAILURE)


@pytest.mark.parametrize(("flushed", "code"), [(StageFlushed(), EXIT_SAVED), (LOST, 128 + TERM)])
def test_a_last_save_counts_only_on_storage(flushed, code):
    crew = training("n0", ends_at=100.0, **STAGING)
    crew.until(60.0)
    take(crew)
    crew.saved_at, crew.checkpoint = crew.now, "ckpt/step-9.pt"
    leave(crew)
    crew.feed(0, flushed)
    assert verdict(crew).code == code


def test_nor_is_it_called_saved_otherwise():
    crew = training("n0", ends_at=100.0, **STAGING)
    crew.until(60.0)
    take(crew)
    crew.saved_at, crew.checkpoint = crew.now, "ckpt/step-9.pt"
    leave(crew)
    crew.feed(0, LOST)
    lost = "not finished, and the last save is lost: ckpt/step-9.pt did not reach storage"
    assert verdict(crew).reason == lost


@pytest.mark.parametrize(
    ("flushed", "sequel"), [(StageFlushed(), Sequel.REQUEUE), (LOST, Sequel.LEAVE)]
)
def test_a_last_save_that_is_lost_is_no_progress(flushed, sequel):
    requeueing = Requeueing(REQUEUED_ENDS, most=5, before=1)
    crew = training("n0", ends_at=100.0, requeueing=requeueing, **STAGING)
    crew.until(60.0)
    take(crew)
    crew.saved_at, crew.checkpoint = crew.now, "ckpt/step-9.pt"
    leave(crew)
    crew.feed(0, flushed)
    assert verdict(crew).sequel is sequel


def test_between_two_rounds_nothing_waits():
    crew = training("n0", stages=True)
    crew.feed(0, WorkerExited(0, 1, 0))
    crew.until(10.0)
    assert (sorted(crew.parts), crew.flush_until) == ([0, 1], [])


@pytest.mark.parametrize(
    ("slurm_id", "signum", "until"),
    [("7", 2, 297.0), ("7", TERM, 5.0 + 20.0 + 7.0), ("", 2, math.inf), ("", TERM, math.inf)],
)
def test_after_a_signal_the_wait_ends_before_slurm_kills_the_job(slurm_id, signum, until):
    crew = training("n0", slurm_id=slurm_id, **STAGING)
    crew.until(5.0)
    crew.feed(0, Signalled(signum))
    crew.until(20.0)
    assert crew.flush_until == [pytest.approx(until, abs=0.1)]


@pytest.mark.parametrize(("notice", "lead"), [(-1.0, 30.0 + 2 * 10.0), (25.0, 25.0)])
def test_the_workers_are_stopped_early_enough_for_the_copy(notice, lead):
    crew = training("n0", ends_at=200.0, notice=notice, save_took=10.0, stages=True)
    crew.feed(0, CheckpointDrained(20.0))
    stop_at = 200.0 - 20.0 - 3.0 - 20.0
    at = stop_at - lead
    crew.until(at - 0.1)
    assert given(crew) == {}
    crew.until(at + 1.0)
    assert given(crew) == {0: [101]}
    assert said(crew, "the workers are given notice")
    crew.until(stop_at - 1.0)
    assert crew.running
    crew.until(stop_at + 2.0)
    assert not crew.running


def test_at_an_end_that_is_near_the_workers_have_half_of_the_time():
    crew = training("n0", notice=-1.0, stages=True)
    crew.feed(0, CheckpointDrained(100.0))
    crew.until(20.0)
    preempt(crew, 20.0 + 60.0, agents=(0,))
    half = (60.0 - 20.0 - 3.0) / 2
    crew.until(20.0 + half - 1.0)
    assert given(crew)
    assert crew.running
    crew.until(20.0 + half + 2.0)
    assert not crew.running
