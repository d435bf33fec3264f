"""Stories of notices: before which step the workers get one, and how the job ends then."""

from __future__ import annotations

import pytest
from crew import Crew
from endings import (
    REQUEUED,
    SETTINGS,
    TERM,
    USR1,
    USR2,
    given,
    kind,
    leave,
    preempt,
    said,
    take,
    training,
    verdict,
)
from story import seen

from hpclaunch.core.protocol.events import (
    CheckpointChosen,
    EndFound,
    NoticeUnheard,
    Requested,
    Signalled,
    WorkerExited,
)
from hpclaunch.core.protocol.job_state import JobState
from hpclaunch.core.protocol.model import (
    EACH_ITS_NEXT,
    EXIT_SAVED,
    EndKind,
    Request,
    Requeueing,
)
from hpclaunch.observe.notifications import Topic
from samples import quick_and_exhaustive

LATE = -1  # the number of an earlier question


# When


def test_slurm_is_asked_again_soon_if_it_does_not_answer():
    crew = training(ends_at=None)
    crew.until(10.0)
    crew.ends_at = 60.0
    crew.until(14.0)
    assert given(crew) == {}
    crew.until(18.0)
    assert given(crew) == {0: [101], 1: [101]}


def test_an_answer_to_an_earlier_question_gives_the_end_time():
    crew = training(ends_at=None)
    crew.until(20.0)  # the second question was at 15
    crew.feed(0, EndFound(40.0, number=LATE))
    crew.until(22.0)
    assert given(crew) == {0: [101], 1: [101]}
    crew.ends_at = 100.0  # it is asked again as if it had not answered
    crew.until(38.0)
    assert not crew.verdicts


def test_an_answer_to_an_earlier_question_does_not_explain_sigterm():
    """Slurm may have answered before the signal."""
    crew = training(ends_at=None)
    crew.until(100.0)
    crew.feed(1, Signalled(TERM))
    crew.feed(0, EndFound(200.0, number=LATE))
    crew.until(101.0)
    assert not crew.verdicts
    crew.feed(0, EndFound(60.0, JobState.PREEMPTED))
    crew.until(110.0)
    assert not crew.verdicts
    assert given(crew) == {0: [101], 1: [101]}


def test_slurm_that_has_answered_is_asked_once_a_minute():
    crew = training(ends_at=300.0)
    crew.ends_at = 100.0
    crew.until(55.0)
    assert given(crew) == {}
    crew.until(65.0)
    assert given(crew) == {0: [101], 1: [101]}


def test_notice_comes_in_time_and_the_end_in_order():
    crew = training()
    crew.until(246.0)
    assert given(crew) == {}
    crew.until(248.0)
    assert given(crew) == {0: [101], 1: [101]}
    assert said(crew, "notice") == [
        "the workers are given notice before step 101: the time limit is in 53 s"
    ]
    crew.until(276.0)
    assert not crew.verdicts
    crew.until(279.0)
    assert verdict(crew).code == 128 + TERM
    assert verdict(crew).reason == (
        "ended 23 s before the time limit; nothing was saved after the notice before step 101"
    )
    assert given(crew) == {0: [101], 1: [101]}


def test_the_longer_a_save_takes_the_earlier_notice_is():
    crew = training(ends_at=1000.0, notice=-1.0)
    crew.feed(1, seen(steps=(100, 100), save=200.0))
    crew.until(546.0)
    assert given(crew) == {}
    crew.until(548.0)
    assert given(crew) == {0: [101], 1: [101]}


def test_the_checkpoints_of_an_earlier_run_show_how_long_a_save_takes():
    crew = training(ends_at=1000.0, notice=-1.0, save_took=200.0)
    crew.until(546.0)
    assert given(crew) == {}
    crew.until(548.0)
    assert given(crew) == {0: [101], 1: [101]}


def test_an_administrator_extends_the_time_limit():
    crew = training(ends_at=200.0)
    crew.until(50.0)
    crew.ends_at = 600.0
    crew.until(540.0)
    assert given(crew) == {}
    crew.until(552.0)
    assert given(crew) == {0: [101], 1: [101]}


def test_an_administrator_takes_the_time_limit_away():
    crew = training(ends_at=200.0)
    crew.until(50.0)
    crew.ends_at = None  # Slurm does not know any
    crew.feed(0, EndFound(None, endless=True))
    crew.until(1500.0)
    assert given(crew) == {}
    assert not crew.verdicts


def test_an_end_that_is_put_off_has_a_notice_of_its_own():
    crew = training(ends_at=200.0, notice=100.0)
    crew.until(78.0)
    assert given(crew) == {0: [101], 1: [101]}
    take(crew)
    crew.ends_at = 250.0  # the time that they have is longer
    crew.until(140.0)
    assert given(crew) == {0: [101], 1: [101]}
    crew.ends_at = 400.0
    crew.until(276.0)
    assert given(crew) == {0: [101], 1: [101]}
    crew.until(279.0)
    assert given(crew) == {0: [101, 101], 1: [101, 101]}
    assert said(crew, "notice") == [
        "the workers are given notice before step 101: the time limit is in 123 s",
        "the workers are given notice before step 101: the time limit is in 123 s",
    ]


def test_without_notice_nothing_is_asked_or_given():
    crew = training(notice=0.0)
    crew.until(800.0)
    assert given(crew) == {}
    assert not crew.verdicts


def test_without_an_answer_of_slurm_nothing_happens():
    crew = training(ends_at=None)
    crew.until(800.0)
    assert given(crew) == {}
    assert not crew.verdicts


def test_no_round_begins_when_it_is_too_late():
    crew = Crew("n0 n1", **SETTINGS)
    crew.ends_at = 10.0
    crew.start(0, 1)
    crew.until(3.0)
    assert crew.parts == {}
    assert verdict(crew).reason == "ended 10 s before the time limit"


def test_the_end_comes_between_two_rounds():
    """A checkpoint that was saved after the notice counts."""
    crew = training(loss=3.0)
    crew.until(251.0)
    take(crew)
    crew.checkpoint, crew.saved_at = "/c/5.pt", 253.0
    crew.until(270.0)
    crew.kill(1, down=True)
    crew.until(295.0)
    assert said(crew, "waiting for n1")
    assert verdict(crew).code == EXIT_SAVED
    assert verdict(crew).reason == (
        "saved, not finished: ended 23 s before the time limit, with /c/5.pt"
    )


# At which step


def test_ranks_that_are_further_get_a_later_step():
    crew = training()
    crew.steps[1] = (5000, 5003)
    crew.steps[0] = (5001, 5002)
    crew.until(251.0)
    assert given(crew) == {0: [5005], 1: [5005]}


def test_one_that_does_not_answer_is_not_waited_for_for_ever():
    crew = training()
    steps = crew.steps.pop(1)
    crew.until(251.0)
    assert crew.offers.keys() == {0}
    crew.until(254.0)
    assert crew.withdrawn == [0, 1]
    assert given(crew) == {}
    crew.steps[1] = steps
    crew.until(260.0)
    assert given(crew) == {0: [101], 1: [101]}


def test_ranks_that_do_not_step_together_each_have_their_own_step():
    crew = training()
    crew.steps[1] = (500, 510)
    crew.until(251.0)
    assert given(crew) == {0: [EACH_ITS_NEXT], 1: [EACH_ITS_NEXT]}


def test_ranks_without_an_optimizer_are_waited_for_a_while():
    crew = training(steps=0)
    crew.until(255.0)
    assert given(crew) == {}
    crew.until(260.0)
    assert given(crew) == {0: [1], 1: [1]}
    assert said(crew, "notice") == ["the workers are given notice: the time limit is in 43 s"]


@pytest.mark.parametrize("ready", [0, 1])
def test_ranks_with_and_without_an_optimizer(ready):
    crew = training()
    crew.steps[ready] = ()
    crew.until(251.0)
    assert given(crew) == {0: [101], 1: [101]}


def test_a_new_round_is_given_notice_again():
    crew = training(loss=3.0)
    crew.until(251.0)
    crew.feed(1, WorkerExited(2, 1, 0))
    crew.until(253.0)
    assert sorted(crew.parts) == [0, 1]
    assert given(crew) == {0: [101, 102], 1: [101, 102]}


def test_another_head_gives_notice_in_its_own_round():
    crew = training("n0 n1 n2", fewest=2, loss=3.0)
    crew.until(240.0)
    del crew.steps[2]
    crew.until(251.0)
    crew.kill(0)
    crew.steps[2] = (100, 100)
    crew.until(262.0)
    assert max(crew.parts) > 0
    assert given(crew) == {1: [102], 2: [102]}


# Preemption, and signals


def test_a_job_that_is_preempted():
    crew = training()
    crew.until(100.0)
    preempt(crew, 160.0)
    crew.until(112.0)
    assert given(crew) == {0: [101], 1: [101]}
    crew.until(136.0)
    assert not crew.verdicts
    crew.until(139.0)
    assert verdict(crew).reason.startswith("ended 23 s before its preemption")


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_preempted_job_with_a_spare(first):
    """The spare, without workers, gets SIGTERM too: in any order, the job does not end yet."""
    crew = training("n0 n1 n2", ends_at=1000.0, most=2, fewest=2)
    crew.until(100.0)
    preempt(crew, 160.0, agents=(first, *({0, 1, 2} - {first})))
    crew.until(112.0)
    assert not crew.verdicts
    assert given(crew) == {0: [101], 1: [101]}


def test_a_job_that_is_preempted_between_two_rounds():
    crew = training()
    crew.until(100.0)
    crew.checkpoint = None  # the next one begins once this is known
    crew.feed(1, WorkerExited(2, 1, 0))
    crew.until(101.0)
    preempt(crew, 160.0)
    crew.until(110.0)
    assert not crew.verdicts


def test_a_preemption_is_not_forgotten_when_slurm_does_not_answer():
    crew = training(ends_at=1000.0)
    crew.until(100.0)
    preempt(crew, 300.0)
    crew.until(110.0)
    for left in (None, 900.0):  # or the environment had to answer
        crew.feed(0, EndFound(left))
    crew.until(252.0)
    assert not crew.verdicts
    assert given(crew) == {0: [101], 1: [101]}


@pytest.mark.parametrize(
    ("state", "ends_at", "requeueing"),
    [
        (JobState.OVER, 100.0, REQUEUED),
        (JobState.OVER, 300.0, REQUEUED),
        (JobState.RUNNING, 1400.0, REQUEUED),  # somebody has signalled it, long before its end
        (JobState.UNKNOWN, 300.0, REQUEUED),  # the environment has answered
        (JobState.RUNNING, 300.0, Requeueing()),
    ],
)
def test_a_job_that_is_cancelled(state, ends_at, requeueing):
    crew = training(ends_at=300.0, requeueing=requeueing)
    crew.until(100.0)
    crew.state, crew.ends_at = state, ends_at
    crew.feed(1, Signalled(TERM))
    crew.until(101.0)
    assert verdict(crew).reason == "ended by SIGTERM on n1"
    assert kind(crew) is EndKind.STOPPED
    assert given(crew) == {}


def test_a_job_that_is_cancelled_is_not_at_its_time_limit():
    """Slurm reports the preemption before its SIGTERM comes."""
    crew = training(ends_at=300.0)
    crew.until(100.0)
    crew.feed(0, EndFound(0.0, JobState.OVER))
    assert not crew.verdicts
    crew.state = JobState.OVER
    crew.feed(1, Signalled(TERM))
    crew.until(101.0)
    assert kind(crew) is EndKind.STOPPED


def test_sigterm_near_the_time_limit_announces_it():
    """Slurm sends it like this for `#SBATCH --signal=TERM@80`."""
    crew = training(requeueing=REQUEUED)
    crew.until(220.0)
    crew.feed(1, Signalled(TERM))
    crew.until(230.0)
    assert crew.said[-1] == "the job is near its time limit: it ends in 80 s"
    assert given(crew) == {}
    crew.until(249.0)
    assert given(crew) == {0: [101], 1: [101]}
    crew.until(279.0)
    assert verdict(crew).reason.startswith("ended 23 s before the time limit")
    assert kind(crew) is EndKind.TIME_LIMIT
    assert len(said(crew, "near its time limit")) == 1


def test_workers_that_leave_after_sigterm_near_the_time_limit():
    crew = training(requeueing=REQUEUED)
    crew.until(220.0)
    for agent in (0, 1):
        crew.feed(agent, Signalled(TERM))
    crew.checkpoint, crew.saved_at = "/c/5.pt", 221.0
    crew.until(222.0)
    leave(crew)
    crew.until(223.0)
    assert (verdict(crew).code, kind(crew)) == (EXIT_SAVED, EndKind.TIME_LIMIT)
    assert "the workers left after Slurm's SIGTERM" in verdict(crew).reason


def test_a_job_that_is_preempted_shortly_before_its_time_limit():
    crew = training(requeueing=REQUEUED)
    crew.until(200.0)
    crew.feed(1, Signalled(TERM))
    crew.until(205.0)
    preempt(crew, 265.0)
    crew.until(250.0)
    assert kind(crew) is EndKind.PREEMPTION


def test_a_job_that_is_cancelled_while_slurm_does_not_answer():
    crew = training(ends_at=None)
    crew.until(100.0)
    crew.feed(1, Signalled(TERM))
    crew.until(101.0)
    assert crew.running.keys() == {0, 1}
    crew.until(103.0)
    assert crew.running == {}
    crew.until(109.0)  # so long it may take to say why, if that is not what it was
    assert not crew.verdicts
    crew.until(111.0)
    assert verdict(crew).reason == "ended by SIGTERM on n1"


def test_workers_that_are_done_while_slurm_does_not_answer_and_the_time_is_over():
    """`until` sees to it that nobody spins until then."""
    crew = training()
    crew.until(276.0)
    take(crew)
    crew.ends_at = None
    crew.feed(0, Signalled(TERM))
    leave(crew)
    crew.until(277.5)
    assert not crew.verdicts
    crew.until(290.0)
    assert verdict(crew).reason == "ended by SIGTERM on n0"


def test_a_job_that_is_cancelled_between_two_rounds_while_slurm_does_not_answer():
    crew = training(ends_at=130.0, loss=3.0, wait=60.0)
    crew.until(90.0)
    crew.kill(1, down=True)
    crew.until(104.0)
    crew.ends_at = None
    crew.feed(0, Signalled(TERM))
    crew.until(113.0)  # the workers would have been ended at 107
    assert not crew.verdicts
    crew.until(126.0)  # it waits for n1 to confirm the end
    assert verdict(crew).reason == "ended by SIGTERM on n0"


def test_a_signal_for_the_workers_is_passed_on_once_to_all():
    crew = training()
    crew.until(100.0)
    for agent in (0, 1):
        crew.feed(agent, Signalled(USR1))
    crew.until(105.0)
    assert {a: [(n.step, n.signum) for n in ns] for a, ns in crew.notices.items()} == {
        0: [(101, USR1)],
        1: [(101, USR1)],
    }
    crew.feed(1, Signalled(USR1))
    crew.until(110.0)
    assert given(crew) == {0: [101, 101], 1: [101, 101]}
    assert crew.said[1:] == []


# How the job ends


def test_workers_that_save_and_leave():
    crew = training()
    crew.until(251.0)
    take(crew)
    crew.checkpoint, crew.saved_at = "/c/5.pt", 253.0
    crew.until(255.0)
    leave(crew)
    crew.until(256.0)
    assert verdict(crew).code == EXIT_SAVED
    assert verdict(crew).reason == (
        "saved, not finished: the workers left after the notice before step 101, with /c/5.pt"
    )


@pytest.mark.parametrize(
    ("settings", "code"), [({}, 128 + TERM), ({"saves": False}, 0), ({"steps": 0}, 0)]
)
def test_workers_that_leave_at_the_step_and_have_saved_nothing(settings, code):
    """Workers that saved nothing at the step do not count as finished."""
    crew = training(**settings)
    crew.until(270.0)
    take(crew)
    take(crew, last=True)
    crew.checkpoint, crew.saved_at = "/c/5.pt", 200.0
    leave(crew)
    crew.until(271.0)
    assert verdict(crew).code == code
    if code:
        assert verdict(crew).reason == (
            "not finished: the workers left after the notice before step 101, "
            "and nothing was saved since"
        )


@pytest.mark.parametrize(("saved_at", "rounds"), [(252.0, 1), (200.0, 2)])
def test_workers_that_leave_with_a_code_of_their_own(saved_at, rounds):
    """Workers that have saved have not failed: there is no other round."""
    crew = training()
    crew.until(251.0)
    take(crew)
    crew.checkpoint, crew.saved_at = "/c/5.pt", saved_at
    crew.feed(1, WorkerExited(2, 99, 0))
    crew.until(255.0)
    assert len(crew.parts) == rounds
    if rounds == 1:
        assert verdict(crew).code == EXIT_SAVED
    else:
        assert not crew.verdicts


@pytest.mark.parametrize("after", [0.0, 9.0])
@pytest.mark.parametrize(
    ("saved_at", "reason"),
    [
        (90.0, "not finished: the workers left after Slurm's SIGTERM, and nothing was saved since"),
        (102.5, "saved, not finished: the workers left after Slurm's SIGTERM, with /c/5.pt"),
    ],
)
def test_workers_that_end_on_the_signal_of_slurm(after, saved_at, reason):
    """Workers may end before the step of a notice, or before Slurm has explained its signal."""
    crew = training()
    crew.until(100.0)
    preempt(crew, 160.0)
    crew.until(100.0 + after)
    crew.checkpoint, crew.saved_at = "/c/5.pt", saved_at
    crew.until(max(saved_at, crew.now))
    leave(crew)
    crew.until(110.0)
    assert verdict(crew).reason == reason


@pytest.mark.parametrize("signum", [USR1, USR2])
@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("after", quick_and_exhaustive([1.0, 500.0], 1))
@pytest.mark.parametrize(("saved", "code"), [(True, EXIT_SAVED), (False, 0)])
def test_workers_that_leave_for_a_signal_before_its_notice(signum, answers, after, saved, code):
    """Slurm has sent it to them as well. They save as long as they like, at the step that they are
    in, and the notice of it was given for the next one, or not even that.
    """
    crew = training(ends_at=1000.0)
    crew.until(100.0)
    if not answers:
        crew.steps.clear()
    for agent in (0, 1):
        crew.feed(agent, Signalled(signum))
    crew.until(100.0 + after)
    assert given(crew) == ({0: [101], 1: [101]} if answers else {})
    crew.checkpoint, crew.saved_at = "/c/5.pt", 100.0 + after if saved else 90.0
    leave(crew)
    crew.until(101.0 + after)
    assert verdict(crew).code == code
    if saved:
        name = {USR1: "SIGUSR1", USR2: "SIGUSR2"}[signum]
        assert kind(crew) is EndKind.TIME_LIMIT
        assert verdict(crew).reason == (
            f"saved, not finished: the workers left after {name}, with /c/5.pt"
        )


@pytest.mark.parametrize(("after", "code"), [(5.0, EXIT_SAVED), (500.0, 0)])
def test_workers_without_an_optimizer_that_leave_for_a_signal(after, code):
    crew = training(ends_at=1000.0, steps=0)
    crew.until(100.0)
    crew.feed(1, Signalled(USR1))
    crew.until(101.0)
    take(crew)
    crew.checkpoint, crew.saved_at = "/c/5.pt", 103.0
    crew.until(100.0 + after)
    leave(crew)
    crew.until(101.0 + after)
    assert verdict(crew).code == code


@pytest.mark.parametrize("steps", [0, 100])
def test_workers_that_do_not_hear_a_signal_do_not_leave_for_it(steps):
    crew = training(steps=steps)
    crew.until(100.0)
    crew.feed(1, Signalled(USR1))
    crew.until(101.0)
    for agent, notices in crew.notices.items():
        crew.feed(agent, NoticeUnheard(notices[-1].number))
    take(crew)
    crew.checkpoint, crew.saved_at = "/c/5.pt", 103.0
    crew.until(105.0)
    leave(crew)
    crew.until(106.0)
    assert verdict(crew).code == 0


def test_workers_that_have_continued_after_a_signal_are_finished():
    crew = training()
    crew.until(100.0)
    crew.feed(1, Signalled(USR1))
    crew.until(101.0)
    take(crew)
    crew.until(251.0)
    assert given(crew) == {0: [101, 101], 1: [101, 101]}
    crew.checkpoint, crew.saved_at = "/c/5.pt", 252.0
    leave(crew)
    crew.until(253.0)
    assert verdict(crew).code == 0


def test_workers_that_leave_before_a_notice_that_a_user_asks_for_are_finished():
    """Slurm has sent the workers nothing, so they did not know of the end."""
    crew = training()
    crew.until(100.0)
    crew.feed(0, Requested(Request.NOTICE))
    crew.until(101.0)
    crew.checkpoint, crew.saved_at = "/c/5.pt", 101.0
    leave(crew)
    crew.until(102.0)
    assert verdict(crew).code == 0


def test_workers_that_began_after_slurms_signal_are_finished():
    crew = training()
    crew.until(100.0)
    preempt(crew, 160.0)
    crew.until(101.0)
    crew.feed(1, WorkerExited(2, 128 + TERM, TERM))
    crew.until(105.0)
    leave(crew)
    crew.until(110.0)
    assert verdict(crew).code == 0


def test_some_that_leave_at_the_step_of_a_signal_are_finished():
    crew = training()
    crew.until(100.0)
    crew.feed(1, Signalled(USR1))
    crew.until(101.0)
    take(crew, last=True)
    leave(crew)
    crew.until(102.0)
    assert verdict(crew).code == 0


@pytest.mark.parametrize(("taken", "saved_at"), [(True, 200.0), (True, None), (False, 253.0)])
def test_workers_that_are_finished(taken, saved_at):
    """Workers are finished if they have saved nothing since, or have not come to the step."""
    crew = training()
    crew.until(251.0)
    if taken:
        take(crew)
    crew.checkpoint, crew.saved_at = "/c/5.pt", saved_at
    crew.until(255.0)
    leave(crew)
    crew.until(256.0)
    assert verdict(crew).code == 0


def test_workers_that_save_and_leave_after_others_have_finished():
    """The others had less to do, and have had no notice."""
    crew = training()
    crew.until(240.0)
    leave(crew, agents=[0])
    crew.until(251.0)
    assert given(crew) == {1: [101]}
    take(crew)
    crew.checkpoint, crew.saved_at = "/c/5.pt", 253.0
    crew.until(255.0)
    leave(crew, agents=[1])
    crew.until(256.0)
    assert verdict(crew).code == EXIT_SAVED


@pytest.mark.parametrize(("after", "code"), [(5.0, EXIT_SAVED), (500.0, 0)])
def test_workers_that_save_and_leave_for_a_signal(after, code):
    crew = training(ends_at=1000.0)
    crew.until(100.0)
    crew.feed(1, Signalled(USR1))
    crew.until(101.0)
    take(crew)
    crew.checkpoint, crew.saved_at = "/c/5.pt", 103.0
    crew.until(100.0 + after)
    leave(crew)
    crew.until(101.0 + after)
    assert verdict(crew).code == code


def test_the_search_for_what_they_have_saved_may_take_a_while():
    crew = training()
    crew.until(100.0)
    crew.feed(1, Signalled(USR1))
    crew.until(101.0)
    take(crew)
    crew.checkpoint = None
    crew.until(129.0)
    leave(crew)
    crew.until(133.0)
    crew.feed(0, CheckpointChosen("/c/5.pt", age=5.0))
    crew.until(134.0)
    assert verdict(crew).code == EXIT_SAVED


@pytest.mark.parametrize(("saved_at", "code"), [(595.0, EXIT_SAVED), (90.0, 0)])
def test_a_save_for_a_signal_may_take_long(saved_at, code):
    """The workers have done nothing but save since the signal."""
    crew = training(ends_at=1000.0)
    crew.until(100.0)
    crew.feed(1, Signalled(USR1))
    crew.until(101.0)
    take(crew)
    crew.checkpoint, crew.saved_at = "/c/5.pt", saved_at
    crew.until(600.0)
    take(crew, last=True)
    leave(crew)
    crew.until(601.0)
    assert verdict(crew).code == code


def test_workers_that_save_and_continue():
    crew = training()
    crew.until(251.0)
    take(crew)
    crew.checkpoint, crew.saved_at = "/c/5.pt", 253.0
    crew.until(279.0)
    assert verdict(crew).code == EXIT_SAVED
    assert verdict(crew).reason == (
        "saved, not finished: ended 23 s before the time limit, with /c/5.pt"
    )


def with_earlier_notice(saved_at, *, taken=True):
    """Let the workers continue after a notice, and save once more a long time later."""
    crew = training(ends_at=9000.0)
    crew.until(100.0)
    crew.feed(0, Requested(Request.NOTICE))
    crew.until(101.0)
    assert given(crew) == {0: [101], 1: [101]}
    if taken:
        take(crew)
    crew.checkpoint, crew.saved_at = "/c/5.pt", saved_at
    crew.until(2000.0)
    return crew


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize(
    ("saved_at", "code", "reason"),
    [
        (1000.0, 128 + TERM, "ended 10 s before its preemption"),
        (1999.0, EXIT_SAVED, "saved, not finished: ended 10 s before its preemption, with /c/5.pt"),
    ],
)
def test_a_save_before_an_end_without_notice_does_not_count(taken, saved_at, code, reason):
    """An earlier notice, of something else, makes no difference."""
    crew = with_earlier_notice(saved_at, taken=taken)
    preempt(crew, 2010.0)
    crew.until(2011.0)
    assert (verdict(crew).code, verdict(crew).reason) == (code, reason)


def test_a_notice_of_something_else_is_no_notice_of_the_time_limit():
    crew = with_earlier_notice(1000.0)
    crew.steps.clear()  # they do not answer any more
    crew.until(8980.0)
    assert verdict(crew).code == 128 + TERM
    assert verdict(crew).reason == "ended 23 s before the time limit"


def test_workers_that_leave_on_the_signal_of_slurm_after_an_earlier_notice():
    crew = with_earlier_notice(1000.0)
    preempt(crew, 2060.0)
    leave(crew)
    crew.until(2003.0)
    assert verdict(crew).code == 128 + TERM
    assert verdict(crew).reason == (
        "not finished: the workers left after Slurm's SIGTERM, and nothing was saved since"
    )


@pytest.mark.parametrize("leaves", [True, False])
def test_a_save_after_the_notice_of_the_end_counts_although_another_notice_follows(leaves):
    crew = training()
    crew.until(251.0)
    take(crew)
    crew.checkpoint, crew.saved_at = "/c/5.pt", 253.0
    crew.until(258.0)
    crew.feed(1, Signalled(USR1))
    crew.until(259.0)
    assert given(crew) == {0: [101, 101], 1: [101, 101]}
    take(crew)
    if leaves:
        leave(crew)
    crew.until(279.0)
    assert verdict(crew).code == EXIT_SAVED


def test_a_search_that_takes_too_long():
    crew = training()
    crew.until(251.0)
    take(crew)
    crew.checkpoint = None
    crew.until(285.0)
    assert not crew.verdicts
    crew.until(292.0)
    assert verdict(crew).code == 128 + TERM


def test_a_search_that_outlasts_the_round():
    """The answer to the search for the next one is not taken for its own."""
    crew = training()
    crew.until(251.0)
    take(crew)
    crew.checkpoint = None
    leave(crew)
    crew.until(252.0)
    crew.checkpoint = ""
    crew.feed(0, Requested(Request.RESTART))
    crew.until(270.0)
    assert sorted(crew.parts) == [0, 1]


def test_a_node_that_comes_back_does_not_repeat_a_training_that_is_over():
    crew = training(loss=3.0, fewest=1)
    crew.until(251.0)
    take(crew)
    crew.checkpoint = None
    leave(crew)
    crew.cut([0], [1])
    crew.until(258.0)
    crew.mend()
    crew.until(270.0)
    assert verdict(crew).code == 0
    assert sorted(crew.parts) == [0]


# Nodes that Slurm drains


def drained(*, saves=True):
    crew = training("n0 n1 n2", ends_at=1000.0, most=2, fewest=2)
    crew.until(100.0)
    crew.draining = ("n1",)
    crew.until(130.0)
    if saves:
        take(crew)
        crew.checkpoint, crew.saved_at = "/c/5.pt", 131.0
    return crew


def test_a_spare_takes_the_place_of_a_drained_node_once_the_workers_have_saved():
    crew = drained()
    assert given(crew) == {0: [101], 1: [101]}
    assert sorted(crew.parts) == [0]
    crew.until(140.0)
    assert sorted(crew.parts[1]) == [0, 2]
    assert crew.parts[1][0].checkpoint == "/c/5.pt"
    assert crew.parts[1][0].restarts == 0
    assert said(crew, "drains") == [
        "Slurm drains n1: the workers are given notice, and once they have saved, the job "
        "continues with a spare",
        "a spare takes the place of n1, which Slurm drains",
    ]


@pytest.mark.parametrize(("age", "rounds"), [(1.0, [0, 1]), (50.0, [0])])
def test_a_save_that_is_done_before_the_first_look(age, rounds):
    crew = training("n0 n1 n2", ends_at=1000.0, most=2, fewest=2)
    crew.until(115.0)
    crew.draining, crew.checkpoint = ("n1",), None
    crew.until(125.0)
    assert given(crew) == {0: [101], 1: [101]}
    crew.checkpoint = "/c/5.pt"
    crew.feed(0, CheckpointChosen("/c/5.pt", age=age))
    crew.until(127.0)
    assert sorted(crew.parts) == rounds


def test_workers_that_save_and_leave_a_drained_node():
    crew = drained()
    leave(crew)
    crew.until(140.0)
    assert not crew.verdicts
    assert sorted(crew.parts[1]) == [0, 2]
    assert said(crew, "takes the place of n1")
    (past,) = crew.past_rounds()
    assert past.why == "to continue with more nodes, or other ones"
    assert Topic.ROUND_ENDED in [each.topic for each in crew.notifications]


def test_nothing_changes_until_they_have_saved():
    crew = drained(saves=False)
    crew.until(400.0)
    assert given(crew) == {0: [101], 1: [101]}
    assert sorted(crew.parts) == [0]


@pytest.mark.parametrize("leaves", [False, True])
def test_a_spare_that_is_lost_takes_no_place(leaves):
    """Workers that have left to make room for the spare begin again on the same nodes."""
    crew = drained(saves=False)
    crew.kill(2)
    take(crew)
    crew.checkpoint, crew.saved_at = "/c/5.pt", 131.0
    if leaves:
        leave(crew)
    crew.until(145.0)
    assert sorted(crew.parts) == ([0, 1] if leaves else [0])
    assert all(sorted(parts) == [0, 1] for parts in crew.parts.values())
    assert not said(crew, "takes the place")
    assert not crew.verdicts


def test_a_drained_node_without_a_spare_stays_in_use():
    crew = training()
    crew.draining = ("n1",)
    crew.until(200.0)
    assert given(crew) == {}


def test_a_drained_spare_takes_no_place():
    crew = training("n0 n1 n2", ends_at=1000.0, most=2, fewest=2)
    crew.draining = ("n1", "n2")
    crew.until(200.0)
    assert given(crew) == {}


def test_a_drained_spare_is_the_last_to_take_a_place():
    crew = training("n0 n1 n2 n3", ends_at=1000.0, most=2, fewest=2)
    crew.until(100.0)
    crew.draining = ("n1", "n2")
    crew.until(130.0)
    take(crew)
    crew.checkpoint, crew.saved_at = "/c/5.pt", 131.0
    crew.until(200.0)
    assert sorted(crew.parts[1]) == [0, 3]
    crew.kill(3)
    crew.until(300.0)
    assert sorted(crew.parts[2]) == [0, 2]
    assert len(said(crew, "the workers are given notice")) == 1


@pytest.mark.parametrize(
    ("lost", "number", "left"), [(1, 1, [0, 3]), (0, 2, [1, 3])], ids=["a node", "the head"]
)
def test_a_drained_spare_does_not_take_the_place_of_a_lost_node(lost, number, left):
    crew = training("n0 n1 n2 n3", ends_at=1000.0, most=2, fewest=2)
    crew.draining = ("n2",)
    crew.until(100.0)
    crew.kill(lost)
    crew.until(200.0)
    assert max(crew.parts) == number
    assert sorted(crew.parts[number]) == left
    assert said(crew, "drains") == []
