"""Stories of jobs that continue in another run, or do not."""

from __future__ import annotations

import pytest
from crew import Crew
from endings import SETTINGS, kind, leave, preempt, take, training, verdict

from hpclaunch.core.ending.table import ENDS
from hpclaunch.core.protocol.effects import StopWorkers
from hpclaunch.core.protocol.events import (
    CheckpointChosen,
    EndFound,
    Requested,
    Signalled,
    WorkerExited,
    WorkersGone,
)
from hpclaunch.core.protocol.job_state import JobState
from hpclaunch.core.protocol.model import (
    EXIT_FAILED,
    EXIT_LOST,
    EXIT_SAVED,
    REQUEUED_ENDS,
    EndKind,
    Origin,
    Request,
    Requeueing,
    Sequel,
)

TERM = 15
STOPPED = "it is not started again: hpclaunch stop"
NO_PROGRESS = (
    "it is not started again: this run saved no checkpoint that is further than that of the run "
    "before"
)


def asked(on=REQUEUED_ENDS, *, most=5, before=0, is_chain=False):
    return Requeueing(on, most, before, is_chain)


def to_the_limit(requeueing, *, first="", last=""):
    """Start a job that resumes from a checkpoint or begins anew, and saves the last one or none."""
    crew = Crew("n0 n1", **SETTINGS, requeueing=requeueing)
    crew.ends_at, crew.checkpoint, crew.steps = 300.0, first, {0: (5, 5), 1: (5, 5)}
    crew.start(0, 1)
    crew.until(251.0)
    crew.checkpoint, crew.saved_at = last or first, 253.0 if last else 0.0
    crew.until(295.0)
    return verdict(crew)


def test_without_being_asked_nothing_comes_after_it():
    ended = to_the_limit(Requeueing(), last="/c/5.pt")
    assert (ended.code, ended.sequel) == (EXIT_SAVED, Sequel.LEAVE)


@pytest.mark.parametrize("last", ["/c/5.pt", ""])
def test_the_first_run_is_always_requeued(last):
    ended = to_the_limit(asked(), last=last)
    assert (ended.code, ended.sequel) == (EXIT_SAVED, Sequel.REQUEUE)
    assert ENDS[ended.origin].kind is EndKind.TIME_LIMIT


@pytest.mark.parametrize(
    ("first", "last", "sequel"),
    [
        ("/c/5.pt", "/c/9.pt", Sequel.REQUEUE),
        ("", "/c/9.pt", Sequel.REQUEUE),
        ("/c/5.pt", "", Sequel.LEAVE),
        ("/c/5.pt", "/c/05.pt", Sequel.LEAVE),  # the same step once more
        ("", "", Sequel.LEAVE),
    ],
)
def test_another_run_must_have_made_progress(first, last, sequel):
    ended = to_the_limit(asked(before=1), first=first, last=last)
    assert ended.sequel is sequel
    assert ended.reason.endswith(NO_PROGRESS) == (sequel is Sequel.LEAVE)
    assert (ended.code == EXIT_SAVED) == (sequel is Sequel.REQUEUE)


def test_what_cannot_be_found_out_is_no_objection():
    crew = training(requeueing=asked(before=1))
    crew.until(251.0)
    crew.checkpoint = None
    crew.until(295.0)
    assert verdict(crew).sequel is Sequel.REQUEUE


def test_it_is_not_requeued_for_ever():
    ended = to_the_limit(asked(most=3, before=3), first="/c/5.pt", last="/c/9.pt")
    assert ended.sequel is Sequel.LEAVE
    assert ended.code == EXIT_FAILED
    assert "it was requeued 3 times (--max-requeues)" in ended.reason


def test_a_job_that_is_finished_is_over():
    crew = training(requeueing=asked())
    leave(crew)
    crew.until(5.0)
    assert kind(crew) is EndKind.FINISHED
    assert verdict(crew).sequel is Sequel.LEAVE


def test_a_job_that_is_cancelled_is_over():
    crew = training(requeueing=asked())
    crew.until(100.0)
    crew.state = JobState.OVER
    crew.feed(1, Signalled(TERM))
    crew.until(105.0)
    assert kind(crew) is EndKind.STOPPED
    assert verdict(crew).sequel is Sequel.LEAVE


@pytest.mark.parametrize(
    ("on", "sequel"), [(REQUEUED_ENDS, Sequel.LEAVE), ((EndKind.FAILURE,), Sequel.REQUEUE)]
)
def test_a_script_that_fails(on, sequel):
    crew = training(requeueing=asked(on), max_restarts=0)
    crew.feed(1, WorkerExited(2, 9, 0))
    crew.until(10.0)
    assert kind(crew) is EndKind.FAILURE
    assert verdict(crew).sequel is sequel
    assert verdict(crew).code == (EXIT_SAVED if sequel is Sequel.REQUEUE else 9)


def test_a_node_that_is_lost():
    crew = training(requeueing=asked(), loss=3.0, wait=10.0)
    crew.until(100.0)
    crew.kill(1)
    crew.until(130.0)
    assert kind(crew) is EndKind.NODE_FAILURE
    assert (verdict(crew).code, verdict(crew).sequel) == (EXIT_SAVED, Sequel.REQUEUE)
    assert verdict(crew).code != EXIT_LOST


def test_a_user_stops_a_job_whose_time_is_up():
    """The request comes while the workers' newest checkpoint is searched for."""
    crew = training(requeueing=asked())
    crew.until(200.0)
    crew.checkpoint = None
    crew.until(285.0)
    assert not crew.running
    assert not crew.verdicts
    crew.feed(0, Requested(Request.STOP))
    crew.until(299.0)
    assert (verdict(crew).origin, verdict(crew).sequel) == (Origin.TIME_LIMIT, Sequel.LEAVE)
    assert verdict(crew).code == 128 + TERM
    assert verdict(crew).reason.endswith(STOPPED)


@pytest.mark.parametrize(
    ("most", "why"), [(5, STOPPED), (1, "it was requeued 1 time (--max-requeues)")]
)
def test_a_user_stops_a_job_whose_script_has_failed(most, why):
    """The failure stays in the report, and so does a reason why no other run could follow."""
    crew = training(requeueing=asked((EndKind.FAILURE,), most=most, before=1), max_restarts=0)
    crew.checkpoint = None
    crew.feed(1, WorkerExited(2, 9, 0))
    crew.until(4.0)
    assert not crew.verdicts
    crew.feed(0, Requested(Request.STOP))
    crew.until(30.0)
    assert (verdict(crew).origin, verdict(crew).sequel) == (Origin.FAILURE, Sequel.LEAVE)
    assert verdict(crew).code == 9
    assert verdict(crew).cause is not None
    assert verdict(crew).reason.endswith(why)


def test_a_user_stops_a_job_before_slurm_has_said_what_its_sigterm_means():
    crew = training(requeueing=asked())
    crew.until(100.0)
    crew.ends_at = None  # it does not answer
    crew.feed(1, Signalled(TERM))
    crew.until(103.0)
    assert not crew.running
    crew.feed(0, Requested(Request.STOP))
    crew.feed(0, EndFound(57.0, JobState.PREEMPTED))
    crew.until(120.0)
    assert (verdict(crew).origin, verdict(crew).sequel) == (Origin.PREEMPTION, Sequel.LEAVE)
    assert verdict(crew).reason.endswith(STOPPED)


# Preemption


def preempted(requeueing, *, requeues):
    crew = training(requeueing=requeueing)
    crew.until(100.0)
    crew.requeues = requeues
    preempt(crew, 160.0)
    crew.until(112.0)
    take(crew)
    crew.checkpoint, crew.saved_at = "/c/5.pt", 113.0
    leave(crew)
    crew.until(120.0)
    return verdict(crew)


@pytest.mark.parametrize("requeues", [True, False])
def test_slurm_starts_a_preempted_job_again_only_if_it_is_there_to_be_killed(requeues):
    ended = preempted(Requeueing(), requeues=requeues)
    assert ended.code == EXIT_SAVED
    assert ended.sequel is (Sequel.LINGER if requeues else Sequel.LEAVE)
    assert (45.0 < ended.left < 50.0) == requeues


@pytest.mark.parametrize(
    ("requeueing", "code"),
    [(Requeueing(), 128 + TERM), (asked((EndKind.TIME_LIMIT,)), EXIT_SAVED)],
)
def test_a_preempted_job_waits_for_slurm_though_it_has_not_answered_lately(requeueing, code):
    """The job has saved nothing. With `--requeue-on`, its code says that another run follows."""
    crew = training(requeueing=requeueing)
    crew.until(100.0)
    crew.requeues = True
    preempt(crew, 160.0)
    crew.until(112.0)
    crew.feed(0, EndFound(None))
    crew.until(145.0)
    assert (verdict(crew).sequel, 20.0 < verdict(crew).left < 24.0) == (Sequel.LINGER, True)
    assert verdict(crew).code == code


def test_a_user_stops_a_preempted_job_that_slurm_would_start_again():
    crew = training(save_took=1.0)
    crew.until(100.0)
    crew.requeues = True
    preempt(crew, 160.0)
    crew.until(112.0)
    crew.checkpoint = None
    crew.until(140.0)
    assert not crew.verdicts
    crew.feed(0, Requested(Request.STOP))
    crew.until(155.0)
    assert (verdict(crew).origin, verdict(crew).sequel) == (Origin.PREEMPTION, Sequel.LEAVE)
    assert verdict(crew).reason.endswith(STOPPED)


@pytest.mark.parametrize(
    ("requeues", "code", "sequel"),
    [(True, EXIT_SAVED, Sequel.LINGER), (False, EXIT_FAILED, Sequel.LEAVE)],
)
@pytest.mark.parametrize("is_chain", [False, True])
def test_a_preempted_job_whose_user_wants_other_requeues(is_chain, requeues, code, sequel):
    ended = preempted(asked((EndKind.TIME_LIMIT,), is_chain=is_chain), requeues=requeues)
    assert ended.code == code
    assert ended.sequel is (Sequel.END_CHAIN if is_chain and not requeues else sequel)


def test_a_user_stops_a_preempted_job_though_other_requeues_are_wanted():
    crew = training(requeueing=asked((EndKind.TIME_LIMIT,)))
    crew.until(100.0)
    crew.requeues = True
    preempt(crew, 160.0)
    crew.until(112.0)
    crew.checkpoint = None
    crew.until(140.0)
    assert not crew.verdicts
    crew.feed(0, Requested(Request.STOP))
    crew.feed(0, CheckpointChosen("/c/5.pt", age=20.0))
    crew.until(145.0)
    assert (verdict(crew).code, verdict(crew).sequel) == (EXIT_FAILED, Sequel.LEAVE)
    assert verdict(crew).reason.endswith(STOPPED)


def test_a_preempted_job_need_not_wait_if_it_is_requeued_anyway():
    assert preempted(asked(), requeues=True).sequel is Sequel.REQUEUE


@pytest.mark.parametrize("requeueing", [Requeueing(), asked()])
@pytest.mark.parametrize("preempted", [True, False])
def test_slurm_takes_its_time_to_say_that_a_job_is_preempted(requeueing, preempted):
    """Slurm has many jobs to preempt. The workers have ended by then, but the user did not ask."""
    crew = training(ends_at=None, requeueing=requeueing)
    crew.until(100.0)
    for agent in (0, 1):
        crew.feed(agent, Signalled(TERM))
    crew.until(105.0)
    assert crew.running == {}
    state = JobState.PREEMPTED if preempted else JobState.OVER
    crew.feed(0, EndFound(55.0, state, may_requeue=True, requeued_if_killed=preempted))
    crew.until(106.0)
    if_preempted = Sequel.REQUEUE if requeueing.on else Sequel.LINGER
    assert verdict(crew).sequel is (if_preempted if preempted else Sequel.LEAVE)
    assert kind(crew) is (EndKind.PREEMPTION if preempted else EndKind.STOPPED)


def warned(state):
    """Start a job in which Slurm's SIGTERM has announced an end that comes later."""
    crew = training(requeueing=asked())
    crew.until(100.0)
    crew.state, crew.ends_at = state, 200.0
    for agent in (0, 1):
        crew.feed(agent, Signalled(TERM))
    crew.until(101.0)
    return crew


@pytest.mark.parametrize("state", [JobState.PREEMPTED, JobState.RUNNING])
def test_a_user_stops_a_job_whose_end_is_announced(state):
    crew = warned(state)
    crew.feed(0, Requested(Request.STOP))
    crew.until(110.0)
    assert verdict(crew).reason == "ended by hpclaunch stop"
    assert (kind(crew), verdict(crew).sequel) == (EndKind.STOPPED, Sequel.LEAVE)


@pytest.mark.parametrize("state", [JobState.PREEMPTED, JobState.RUNNING])
@pytest.mark.parametrize("is_cancelled", [True, False])
def test_sigterm_that_comes_once_more(state, is_cancelled):
    """Slurm sends it also if the job is preempted and near its time limit, and at its very end."""
    crew = warned(state)
    crew.state = JobState.OVER if is_cancelled else state
    crew.feed(1, Signalled(TERM))
    crew.until(110.0)
    if is_cancelled:
        assert (kind(crew), verdict(crew).sequel) == (EndKind.STOPPED, Sequel.LEAVE)
    else:
        assert kind(crew) in (EndKind.PREEMPTION, EndKind.TIME_LIMIT)
        assert verdict(crew).sequel is Sequel.REQUEUE


def test_sigterm_that_comes_once_more_while_slurm_does_not_answer():
    crew = warned(JobState.PREEMPTED)
    crew.ends_at = None
    crew.feed(1, Signalled(TERM))
    crew.until(110.0)
    assert not crew.verdicts
    crew.until(112.0)
    assert (kind(crew), verdict(crew).sequel) == (EndKind.PREEMPTION, Sequel.REQUEUE)


def test_a_job_that_somebody_else_requeues():
    crew = training(requeueing=asked())
    crew.until(100.0)
    crew.ends_at, crew.state = 130.0, JobState.REQUEUED
    for agent in (0, 1):
        crew.feed(agent, Signalled(TERM))
    crew.until(101.0)
    assert "the job is requeued: it ends in 30 s" in crew.said
    crew.ends_at = 300.0
    crew.until(106.0)
    assert not crew.verdicts
    crew.until(125.0)
    assert verdict(crew).reason.startswith("ended 23 s before Slurm requeues it")
    assert verdict(crew).sequel is Sequel.REQUEUE  # asked again, Slurm would say that it is


def test_a_job_that_slurm_would_not_start_again_says_so_at_once():
    crew = training(requeueing=asked())
    assert not [line for line in crew.said if "cannot be requeued" in line]
    crew.requeues = None
    crew.until(200.0)
    assert len([line for line in crew.said if "cannot be requeued" in line]) == 1


# Chains


@pytest.mark.parametrize(
    ("first", "last", "sequel"),
    [("/c/5.pt", "/c/9.pt", Sequel.NEXT), ("/c/5.pt", "", Sequel.END_CHAIN)],
)
def test_the_next_element_of_a_chain_continues(first, last, sequel):
    ended = to_the_limit(asked(before=1, most=2, is_chain=True), first=first, last=last)
    assert ended.sequel is sequel
    assert (ended.code == EXIT_SAVED) == (sequel is Sequel.NEXT)


def test_after_the_last_element_of_a_chain_no_other_run_follows():
    ended = to_the_limit(asked(before=2, most=2, is_chain=True), first="/c/5.pt", last="/c/9.pt")
    assert (ended.code, ended.sequel) == (EXIT_FAILED, Sequel.END_CHAIN)
    assert ended.reason.endswith("this was the last element of the chain")


def test_a_chain_ends_with_the_training():
    crew = training(requeueing=asked(is_chain=True))
    leave(crew)
    crew.until(5.0)
    assert (verdict(crew).code, verdict(crew).sequel) == (0, Sequel.END_CHAIN)


def test_a_chain_ends_with_a_script_that_fails():
    crew = training(requeueing=asked(is_chain=True), max_restarts=0)
    crew.feed(1, WorkerExited(2, 9, 0))
    crew.until(10.0)
    assert verdict(crew).sequel is Sequel.END_CHAIN


def test_a_job_that_is_preempted_while_its_workers_are_stopped_for_the_time_limit():
    """The origin of its end is another one by then, and another run must have made progress."""
    crew = Crew("n0 n1", **SETTINGS, requeueing=asked((EndKind.PREEMPTION,), before=1))
    crew.ends_at, crew.checkpoint, crew.steps = 300.0, "/c/5.pt", {0: (5, 5), 1: (5, 5)}
    crew.start(0, 1)
    crew.until(251.0)
    crew.checkpoint, crew.saved_at = "/c/9.pt", 253.0
    carry_out, stopped = crew._carry_out, set()

    def stop_slowly(agent, effect):
        if isinstance(effect, StopWorkers):
            stopped.add(agent)
        else:
            carry_out(agent, effect)

    crew._carry_out = stop_slowly
    while len(stopped) < 2:
        crew.until(crew.now + 0.25)
        assert crew.now < 295.0
    crew.state = JobState.PREEMPTED
    crew.feed(0, EndFound(crew.ends_at, JobState.PREEMPTED, may_requeue=True))
    crew._carry_out = carry_out
    for agent in stopped:
        crew.running.pop(agent)
        crew.feed(agent, WorkersGone())
    crew.until(295.0)
    ended = verdict(crew)
    assert (ended.origin, ended.sequel) == (Origin.PREEMPTION, Sequel.REQUEUE)
