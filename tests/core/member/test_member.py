"""Stories of one agent that is not the head: what it hears, and what it does about it."""

from __future__ import annotations

import signal

import pytest
from story import (
    TERM,
    Say,
    a_member,
    a_part,
    an_order,
    deeds,
    end,
    feed,
    idle,
    reports,
    run,
    running,
    seen,
    stop,
    wait,
)

from hpclaunch.core.protocol.effects import (
    AwaitStillness,
    GiveNotice,
    KillIdleWorkers,
    KillWorkers,
    OfferNotice,
    OpenStore,
    SignalLeftovers,
    SignalWorkers,
    StartWorkers,
    StopWorkers,
    WithdrawNotice,
)
from hpclaunch.core.protocol.events import (
    AgentGone,
    HeadClosed,
    LeaseOver,
    LeftBehind,
    NoticeOffered,
    NoticeTaken,
    Signalled,
    Started,
    StoreListening,
    Tick,
    TroubleFound,
    WorkerExited,
    WorkersGone,
)
from hpclaunch.core.protocol.model import (
    EXIT_LOST,
    Goal,
    Leftover,
    NoticeAnswer,
    Origin,
    Phase,
    Spent,
    StepNotice,
    Trouble,
    Verdict,
)
from hpclaunch.core.protocol.values import replace

# One round


def test_a_round_that_succeeds():
    member = a_member()
    assert deeds(feed(member, 0.0, Started())) == [OpenStore()]
    feed(member, 0.1, StoreListening(4001))
    assert member.phase is Phase.IDLE
    order = run(0)
    effects = feed(member, 0.2, order)
    assert deeds(effects) == [StartWorkers(order.message.assignment)]
    assert reports(effects)[-1].phase is Phase.RUNNING
    feed(member, 9.0, WorkerExited(2, 0, 0), WorkerExited(3, 0, 0))
    (report,) = reports(feed(member, 9.1, WorkersGone()))
    assert (report.phase, report.round) == (Phase.DONE, 0)
    feed(member, 9.2, end())
    assert member.phase is Phase.ENDED
    assert member.verdict.code == 0


def test_a_death_by_sigkill_that_is_seen_late_may_be_the_cause():
    """The other rank fails because of it, and may be gone first."""
    member = running()
    feed(member, 2.0, WorkerExited(3, 1, 0, "Connection closed by peer"))
    (report,) = reports(feed(member, 2.1, WorkerExited(2, 137, 9)))
    assert [(e.rank, e.stopped) for e in report.exits] == [(3, False), (2, False)]


def test_a_death_by_sigkill_that_is_seen_after_the_heads_order_may_be_the_cause():
    """Ranks of another agent have failed because of it."""
    member = running()
    feed(member, 2.0, stop(0, lost=True))
    (report,) = reports(feed(member, 2.1, WorkerExited(2, 137, 9)))
    assert [e.stopped for e in report.exits] == [False]


@pytest.mark.parametrize("killing", [Tick(), LeaseOver()], ids=["grace", "lease"])
def test_a_death_by_the_agents_own_sigkill_is_no_failure(killing):
    member = running()
    feed(member, 2.0, WorkerExited(3, 1, 0))
    feed(member, 7.0, killing)
    (report,) = reports(feed(member, 7.1, WorkerExited(2, 137, 9)))
    assert [(e.rank, e.stopped) for e in report.exits] == [(3, False), (2, True)]


def test_a_death_by_sigkill_while_a_round_is_stopped_is_no_failure():
    member = running()
    feed(member, 2.0, stop(0))
    (report,) = reports(feed(member, 2.1, WorkerExited(2, 137, 9)))
    assert [e.stopped for e in report.exits] == [True]


def test_a_worker_that_fails_ends_the_round_without_asking():
    member = running()
    effects = feed(member, 2.0, WorkerExited(3, 1, 0, "boom"))
    assert deeds(effects) == [StopWorkers()]
    (failure,) = reports(effects)[-1].exits
    assert (failure.rank, failure.code, failure.stopped, failure.tail) == (3, 1, False, "boom")
    (report,) = reports(feed(member, 2.5, WorkerExited(2, 143, 15)))
    assert [(e.rank, e.age, e.stopped) for e in report.exits] == [(3, 0.5, False), (2, 0.0, True)]
    assert deeds(feed(member, 2.6, WorkersGone())) == [OpenStore()]
    (report,) = reports(feed(member, 2.7, StoreListening(4002)))
    assert (report.phase, report.round, report.store_port) == (Phase.IDLE, 0, 4002)
    assert len(report.exits) == 2  # reported until the next round begins


def test_a_round_lost_elsewhere():
    member = running()
    assert deeds(feed(member, 2.0, stop(0))) == [StopWorkers()]
    assert deeds(feed(member, 2.1, WorkersGone())) == [OpenStore()]


def test_done_here_but_lost_elsewhere():
    member = running()
    feed(member, 2.0, WorkerExited(2, 0, 0), WorkerExited(3, 0, 0), WorkersGone())
    assert deeds(feed(member, 3.0, stop(0))) == [OpenStore()]
    feed(member, 3.1, StoreListening(4002))
    assert deeds(feed(member, 3.2, run(1))) != []
    assert member.round == 1


def test_stop_arrives_before_run():
    """The order to run was overtaken: that round is over, and must not begin here any more."""
    member = idle()
    late = run(0, serial=900_001)
    assert deeds(feed(member, 1.0, stop(0, serial=900_002))) == []
    assert (member.phase, member.round) == (Phase.IDLE, 0)
    assert feed(member, 1.1, late) == []


def test_a_report_on_a_round_without_workers_here_says_nothing_of_an_earlier_one():
    member = running()
    feed(member, 2.0, seen(spent=(1, 2, 3, 4, 5)))
    feed(member, 3.0, stop(0), WorkersGone())
    (report,) = reports(feed(member, 3.1, StoreListening(4002)))
    assert (report.round, report.group, report.spent.times != ()) == (0, 1, True)
    (report,) = reports(feed(member, 4.0, stop(1)))
    assert (report.round, report.group, report.spent) == (1, -1, Spent())
    assert deeds(feed(member, 5.0, run(2))) == [StartWorkers(a_part(2))]
    assert member.work.spending.elapsed(6.0) == 1000


def test_run_without_being_ready():
    member = a_member()
    feed(member, 0.0, Started())
    assert deeds(feed(member, 0.1, run(0))) == []
    assert member.round == -1


def test_duplicate_and_old_orders_change_nothing():
    member = running()
    first, second = stop(0, serial=900_011), run(1, serial=900_012)
    feed(member, 2.0, first, WorkersGone(), StoreListening(4002))
    feed(member, 2.1, second)
    for again in (first, second, run(0, serial=900_010), end(serial=900_001)):
        assert feed(member, 2.2, again) == []
    assert (member.phase, member.round, member.verdict) == (Phase.RUNNING, 1, None)


def test_a_round_is_run_once():
    """The head repeats the order until it hears that it was obeyed, which may take its time."""
    member = running()
    feed(member, 2.0, WorkerExited(2, 1, 0), WorkersGone(), StoreListening(4002))
    assert member.phase is Phase.IDLE
    assert feed(member, 2.1, run(0)) == []


def test_an_order_for_a_round_before_leaves_this_one_alone():
    member = running()
    feed(member, 2.0, stop(0), WorkersGone(), StoreListening(4002), run(1))
    assert deeds(feed(member, 2.1, stop(0))) == []
    assert member.phase is Phase.RUNNING


@pytest.mark.parametrize("order", [run, stop, wait])
def test_who_hears_that_the_others_are_further_leaves_its_round(order):
    member = running()
    assert deeds(feed(member, 2.0, order(2))) == [StopWorkers()]
    feed(member, 2.1, WorkersGone(), StoreListening(4002), run(3))
    assert (member.phase, member.round) == (Phase.RUNNING, 3)


# Grace, and the end of grace


def test_workers_that_ignore_sigterm_are_killed():
    member = running(grace=20.0)
    feed(member, 2.0, stop(0))
    assert deeds(feed(member, 21.9, Tick())) == []
    assert deeds(feed(member, 22.0, Tick())) == [KillWorkers()]
    assert deeds(feed(member, 22.1, WorkersGone())) == [OpenStore()]
    assert deeds(feed(member, 60.0, Tick())) == []


def test_a_lost_round_does_not_wait_for_workers_that_save_nothing():
    """Workers may be stuck in a collective with a dead peer, and run no signal handler."""
    member = running(grace=20.0, stuck=5.0)
    assert deeds(feed(member, 2.0, WorkerExited(3, 1, 0))) == [StopWorkers()]
    assert deeds(feed(member, 6.9, Tick())) == []
    for now in (7.0, 12.0, 17.0):
        assert deeds(feed(member, now, Tick())) == [KillIdleWorkers()]
    assert deeds(feed(member, 22.0, Tick())) == [KillWorkers()]
    assert deeds(feed(member, 27.0, Tick())) == []
    feed(member, 28.0, WorkersGone(), StoreListening(4002), run(1))
    assert deeds(feed(member, 60.0, Tick())) == []


@pytest.mark.parametrize(
    ("events", "kills"),
    [
        ([WorkerExited(3, 1, 0)], [KillIdleWorkers()]),
        ([stop(0, serial=900_000, lost=True)], [KillIdleWorkers()]),
        ([HeadClosed(0), AgentGone(0)], [KillIdleWorkers()]),
        ([stop(0, serial=900_000)], []),
        ([TERM], []),
        ([end(143, "ended by SIGTERM on n0", serial=900_000)], []),
        ([TroubleFound(Trouble(Origin.TROUBLE, "the disk is full"))], []),
    ],
    ids=["failed here", "failed elsewhere", "head", "ended elsewhere", "signal", "end", "trouble"],
)
def test_only_a_lost_round_hurries(events, kills):
    member = running(grace=20.0, stuck=5.0)
    feed(member, 2.0, *events, Tick())
    feed(member, 3.0, Tick())
    assert member.phase is Phase.STOPPING
    asked = deeds(feed(member, 7.5, Tick()))
    assert [e for e in asked if isinstance(e, KillIdleWorkers)] == kills


def test_a_lost_round_that_is_ended_as_well():
    """The first decision holds; a second request ends the grace period."""
    member = running(grace=20.0, stuck=5.0)
    feed(member, 2.0, WorkerExited(3, 1, 0))
    assert deeds(feed(member, 3.0, TERM)) == []
    assert deeds(feed(member, 7.0, Tick())) == [KillIdleWorkers()]
    assert deeds(feed(member, 8.0, TERM)) == [KillWorkers()]
    assert deeds(feed(member, 12.0, Tick())) == []


@pytest.mark.parametrize("grace", [0.0, 5.0])
def test_without_much_grace_nobody_looks_who_is_idle(grace):
    member = running(grace=grace, stuck=5.0)
    effects = feed(member, 2.0, stop(0, lost=True), Tick()) + feed(member, 7.0, Tick())
    assert deeds(effects) == [StopWorkers(), KillWorkers()]


def test_unkillable_workers_cordon_the_node():
    member = running(grace=20.0, unkillable=30.0)
    feed(member, 2.0, stop(0))
    feed(member, 22.0, Tick())
    (report,) = reports(feed(member, 52.0, Tick()))
    assert (report.phase, report.trouble) == (Phase.STUCK, None)
    assert "workers survive SIGKILL for 30 s" in report.unfit
    feed(member, 52.1, end(EXIT_LOST, report.unfit))
    assert member.phase is Phase.ENDED, "nothing more can be done: the agent leaves"


def test_unkillable_workers_after_the_end_was_ordered():
    member = running(grace=20.0, unkillable=30.0)
    feed(member, 2.0, end(143, "ended by SIGTERM on n0"))
    feed(member, 22.0, Tick())
    (said,) = deeds(feed(member, 52.0, Tick()))
    assert isinstance(said, Say)
    assert member.phase is Phase.ENDED
    assert member.verdict.code == 143


def test_the_end_waits_for_the_workers():
    member = running()
    assert deeds(feed(member, 2.0, end(1, "why"))) == [StopWorkers()]
    assert member.phase is Phase.STOPPING
    feed(member, 3.0, WorkersGone())
    assert member.phase is Phase.ENDED


# What the workers leave behind

UPLOAD = LeftBehind((Leftover(4711, "sh", 2), Leftover(4712, "aws")))
TRACKER = LeftBehind((Leftover(4713, "python"),))
NAMES = "sh (rank 2, pid 4711), aws (pid 4712)"


def left_behind(**settings):
    """Return a member whose workers have ended with 0, at 2.0, and have left something behind."""
    member = running(grace=20.0, leftovers=3.0, **settings)
    done = WorkerExited(2, 0, 0), WorkerExited(3, 0, 0)
    assert deeds(feed(member, 2.0, *done, UPLOAD, Tick())) == []
    return member


def test_what_is_left_behind_after_a_good_end_has_the_time_of_a_grace_period():
    member = left_behind()
    waiting = f"n1: waiting up to 20 s (--grace) for what the workers left behind: {NAMES}"
    assert deeds(feed(member, 3.0, Tick())) == [Say(waiting)]
    ending = f"n1: ending what the workers left behind, after 20 s (--grace): {NAMES}"
    assert deeds(feed(member, 21.9, Tick())) == []
    asked = deeds(feed(member, 22.0, Tick()))
    assert asked == [Say(ending), SignalLeftovers(signal.SIGTERM)]
    killing = f"n1: killing what the workers left behind: {NAMES}"
    asked = deeds(feed(member, 25.0, Tick()))
    assert asked == [Say(killing), SignalLeftovers(signal.SIGKILL)]
    assert member.phase is Phase.RUNNING
    feed(member, 25.1, WorkersGone())
    assert member.phase is Phase.DONE


def test_what_ends_by_itself_at_once_is_not_named():
    member = left_behind()
    feed(member, 2.9, WorkersGone())
    assert member.phase is Phase.DONE
    assert deeds(feed(member, 60.0, Tick())) == []


def test_a_line_names_what_is_still_there():
    member = left_behind()
    feed(member, 2.5, TRACKER)
    (said,) = deeds(feed(member, 3.0, Tick()))
    assert said.text.endswith(": python (pid 4713)")


@pytest.mark.parametrize("asked", [stop(0, serial=900_000, lost=True), TERM], ids=["lost", "TERM"])
def test_what_is_left_behind_by_workers_that_were_stopped_has_a_moment(asked):
    """Leftover processes clean up shared resources; the next round waits for them."""
    member = running(grace=20.0, leftovers=3.0)
    assert deeds(feed(member, 2.0, asked)) == [StopWorkers()]
    feed(member, 2.1, WorkerExited(2, 143, 15), WorkerExited(3, 143, 15), UPLOAD)
    feed(member, 3.0, TRACKER)
    assert deeds(feed(member, 5.0, Tick())) == []
    said, killed = deeds(feed(member, 5.1, Tick()))
    assert said == Say("n1: killing what the workers left behind: python (pid 4713)")
    assert killed == SignalLeftovers(signal.SIGKILL)
    assert deeds(feed(member, 30.0, Tick())) == []


def test_a_round_that_is_lost_after_a_good_end_here_waits_for_no_upload():
    member = left_behind()
    assert deeds(feed(member, 4.0, stop(0, lost=True))) == [StopWorkers()]
    assert deeds(feed(member, 7.0, Tick()))[-1:] == [SignalLeftovers(signal.SIGKILL)]


def test_a_second_signal_kills_what_is_left_behind():
    member = left_behind()
    feed(member, 2.5, TERM)
    assert deeds(feed(member, 2.6, TERM))[-1:] == [SignalLeftovers(signal.SIGKILL)]


def test_what_is_left_behind_and_cannot_be_killed_cordons_the_node():
    """The workers have done their work all the same."""
    member = left_behind(unkillable=30.0)
    for now in (22.0, 25.0):
        feed(member, now, Tick())
    (report,) = reports(feed(member, 55.0, Tick()))
    assert report.phase is Phase.DONE
    why = "processes that the workers left behind survive SIGKILL for 30 s"
    assert report.unfit.startswith(why)


def test_what_killed_workers_left_behind_has_its_own_time_after_sigkill():
    member = running(grace=20.0, leftovers=3.0, unkillable=30.0)
    feed(member, 2.0, stop(0))
    assert deeds(feed(member, 22.0, Tick())) == [KillWorkers()]
    feed(member, 50.0, WorkerExited(2, 137, 9), WorkerExited(3, 137, 9), UPLOAD)
    assert deeds(feed(member, 52.9, Tick())) == []
    assert member.phase is Phase.STOPPING
    assert deeds(feed(member, 53.0, Tick()))[-1:] == [SignalLeftovers(signal.SIGKILL)]
    assert "left behind survive SIGKILL" in reports(feed(member, 83.0, Tick()))[0].unfit


# Signals and troubles


INTERRUPT = {"signum": signal.SIGINT}


def test_an_interrupt_elsewhere_is_waited_for_here():
    """Slurm is most likely about to send it to this agent, and on some clusters to its workers."""
    member = running(wave=0.5)
    assert deeds(feed(member, 2.0, stop(0, serial=900_000, **INTERRUPT))) == []
    assert deeds(feed(member, 2.4, stop(0, serial=900_001, **INTERRUPT))) == []
    assert deeds(feed(member, 2.5, Tick())) == [StopWorkers(signal.SIGINT)]
    assert deeds(feed(member, 2.6, stop(0, serial=900_002, **INTERRUPT))) == []


def test_an_interrupt_that_comes_here_as_well():
    member = running(wave=0.5)
    assert deeds(feed(member, 2.0, stop(0, serial=900_000, **INTERRUPT))) == []
    assert deeds(feed(member, 2.1, Signalled(signal.SIGINT))) == [StopWorkers(signal.SIGINT)]
    assert deeds(feed(member, 2.6, Tick())) == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize("heard", ["here", "elsewhere", "elsewhere, and the job is over"])
def test_the_workers_get_the_signal_that_ends_the_job(signum, heard):
    """The workers get the signal whether it came to this agent or is reported by the head."""
    member = running(wave=0.0)
    verdict = Verdict(128 + signum, f"ended by {signum.name} on n0", Origin.SIGNAL, signum=signum)
    event = {
        "here": Signalled(signum),
        "elsewhere": stop(0, serial=900_000, signum=signum),
        "elsewhere, and the job is over": an_order(Goal.END, serial=900_000, verdict=verdict),
    }[heard]
    assert deeds(feed(member, 2.0, event)) == [StopWorkers(signum)]


def test_sigterm_stops_the_workers_and_is_reported():
    member = running()
    effects = feed(member, 2.0, TERM)
    assert deeds(effects) == [StopWorkers()]
    assert reports(effects)[-1].stop_signal == signal.SIGTERM


def test_sigterm_twice_kills():
    member = running(grace=20.0)
    feed(member, 2.0, TERM)
    assert deeds(feed(member, 3.0, TERM)) == [KillWorkers()]


def test_impatience_does_not_put_off_the_end():
    """Signals after the kill change nothing: the workers count as unkillable when they would."""
    member = running(grace=20.0, unkillable=30.0)
    feed(member, 2.0, TERM, end(143, "ended by SIGTERM on n1"))
    assert deeds(feed(member, 3.0, TERM)) == [KillWorkers()]
    assert deeds(feed(member, 13.0, TERM)) == []
    feed(member, 33.0, Tick())
    assert member.phase is Phase.ENDED


def test_no_round_begins_after_sigterm():
    member = idle()
    feed(member, 1.0, TERM)
    assert deeds(feed(member, 1.1, run(0))) == []


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2])
def test_user_signals_are_passed_on_while_workers_run(signum):
    member = idle()
    assert deeds(feed(member, 0.5, Signalled(signum))) == []
    feed(member, 1.0, run(0))
    effects = feed(member, 2.0, Signalled(signum))
    assert deeds(effects) == []
    assert [report.passed for report in reports(effects)] == [(signum, 1)]  # by the head
    assert [r.passed for r in reports(feed(member, 2.5, Signalled(signum)))] == [(signum, 2)]
    feed(member, 3.0, stop(0))
    assert deeds(feed(member, 3.1, Signalled(signum))) == []
    assert member.verdict is None


def test_user_signals_are_passed_on_at_once_without_notices():
    member = running(notice=0.0)
    assert deeds(feed(member, 2.0, Signalled(10))) == [SignalWorkers(10)]


def test_sigterm_may_mean_an_end_that_comes_later():
    member = running(slurm_id="7")
    effects = feed(member, 2.0, TERM)
    assert deeds(effects) == []
    assert [(r.warned, r.stop_signal) for r in reports(effects)] == [(15, 0)]
    assert deeds(feed(member, 2.1, run(0, later=True))) == []
    assert deeds(feed(member, 5.0, Tick())) == []
    assert deeds(feed(member, 9.0, TERM)) == [StopWorkers()]  # and now it comes


def test_sigterm_is_the_end_if_the_head_says_nothing():
    member = running(slurm_id="7")
    feed(member, 2.0, TERM)
    assert deeds(feed(member, 3.9, Tick())) == []
    effects = feed(member, 4.0, Tick())
    assert deeds(effects) == [StopWorkers()]
    assert [r.stop_signal for r in reports(effects)] == [15]


def test_a_notice_is_offered_once_and_given_once():
    member = running()
    offer = StepNotice(3, 120, 0)
    assert deeds(feed(member, 2.0, run(0, notice=offer))) == [OfferNotice(offer)]
    assert deeds(feed(member, 2.1, run(0, notice=offer))) == []
    answer = NoticeAnswer(3, accepted=True, steps=(117, 118))
    assert [r.notice for r in reports(feed(member, 2.2, NoticeOffered(answer)))] == [answer]
    given = replace(offer, given=True)
    assert deeds(feed(member, 2.3, run(0, notice=given))) == [GiveNotice(3)]
    assert deeds(feed(member, 2.4, run(0, notice=given))) == []
    (reported,) = reports(feed(member, 2.5, NoticeTaken(3)))
    assert reported.notice == replace(answer, taken=3, given=3)
    assert deeds(feed(member, 2.6, run(0))) == []  # what was given cannot be withdrawn


def test_a_notice_is_withdrawn():
    member = running()
    feed(member, 2.0, run(0, notice=StepNotice(3, 120, 0)))
    assert deeds(feed(member, 2.1, run(0))) == [WithdrawNotice()]
    again = StepNotice(4, 130, 0)
    assert deeds(feed(member, 2.2, run(0, notice=again))) == [OfferNotice(again)]
    late = NoticeAnswer(3, accepted=True)
    feed(member, 2.3, NoticeOffered(late))
    assert member.work.notice is None


def test_trouble_is_reported_and_stops_the_workers():
    member = running()
    trouble = Trouble(Origin.TROUBLE, "the fork server on n1 was killed")
    effects = feed(member, 2.0, TroubleFound(trouble))
    assert deeds(effects) == [StopWorkers()]
    assert reports(effects)[-1].trouble == trouble
    feed(member, 2.1, TroubleFound(Trouble(Origin.USAGE, "another")))
    assert reports(feed(member, 3.5, Tick()))[-1].trouble == trouble  # the first one counts


def test_once_ended_nothing_matters():
    member = idle()
    feed(member, 1.0, end(1, "why"))
    assert feed(member, 2.0, run(0), TERM, Tick(), WorkersGone()) == []


def test_an_order_for_an_earlier_launch_in_the_same_step_is_none_of_ours():
    member = a_member()
    feed(member, 0.0, Started(), StoreListening(4001))
    feed(member, 1.0, end(incarnation="earlier"))
    assert member.verdict is None


def test_a_message_holds_the_last_words_of_the_first_failure_only():
    """A node has many workers, and a message has a limit."""
    member = running()
    words = [WorkerExited(rank, 1, 0, "x" * 4000) for rank in range(200)]
    effects = feed(member, 1.0, *words)
    exits = reports(effects)[-1].exits
    assert len(exits) == 200
    assert [bool(e.tail) for e in exits[:2]] == [True, False]


def test_the_stillness_that_means_a_hang_is_awaited_in_each_round():
    member = running()

    def awaited(now, event):
        effects = deeds(feed(member, now, event))
        return [e.seconds for e in effects if isinstance(e, AwaitStillness)]

    assert awaited(2.0, seen()) == [(10, 100)]
    assert awaited(3.0, seen(still=3.0)) == []
    assert awaited(4.0, seen(gap=4.0)) == [(20, 200)]
    assert awaited(5.0, seen(traced=True)) == [()]
