"""Stories of the notifications that a job sends to people who do not watch it."""

from __future__ import annotations

import pytest
from crew import Crew
from endings import SETTINGS, leave
from story import seen
from test_hang_watch import stall
from test_hang_watch import training as about_to_hang
from test_straggler_watch import keep_pace, make_steps
from test_straggler_watch import training as keeping_pace

from hpclaunch.core.protocol.events import (
    Diagnosed,
    HealthFound,
    Requested,
    WorkerExited,
)
from hpclaunch.core.protocol.facts import (
    EndReason,
    HeadChanged,
    HeadDeposed,
    NodeLost,
    RoundBegan,
    RoundEnded,
)
from hpclaunch.core.protocol.model import EndKind, Failure, Grow, Request, Requeueing
from hpclaunch.observe.job_report import report
from hpclaunch.observe.notifications import STORM, Notifications, Topic


def training(hosts="n0 n1", **settings):
    """Two workers on each."""
    crew = Crew(hosts, **settings)
    crew.start(*range(len(hosts.split())))
    crew.until(2.0)
    return crew


def topics(crew):
    return [notify.topic for notify in crew.notifications]


def last(crew, topic):
    return next(notify for notify in reversed(crew.notifications) if notify.topic is topic)


def fail(crew, agent=1, tail="ValueError: no"):
    crew.feed(agent, WorkerExited(2 * agent, 1, 0, tail))
    crew.until(crew.now + 2.0)


def test_a_job_from_its_begin_to_its_end():
    crew = training()
    (began,) = crew.notifications
    assert (began.topic, began.round) == (Topic.ROUND_BEGAN, 0)
    assert began.text == "round 0 begins: 2 nodes, 4 ranks"
    assert began.details == {"nodes": 2, "ranks": 4}
    leave(crew)
    (_, over) = crew.notifications
    assert over.topic is Topic.JOB_OVER
    assert over.text == "all workers ended with 0 (exit code 0)"
    assert over.details == {
        "result": "finished",
        "exit_code": 0,
        "cause": "done",
        "restarts": 0,
    }


def test_a_failure_is_reported_with_its_cause_before_the_next_round():
    crew = training()
    crew.checkpoint = "/c/7.pt"
    fail(crew)
    assert topics(crew)[1:] == [Topic.ROUND_ENDED, Topic.ROUND_BEGAN]
    ended, began = crew.notifications[1:]
    assert (ended.round, ended.text) == (0, "rank 2 on n1 exited with code 1")
    assert ended.details == {
        "cause": "exception",
        "node": "n1",
        "rank": 2,
        "exit_code": 1,
        "detail": "ValueError: no",
    }
    assert (began.round, began.details["checkpoint"]) == (1, "/c/7.pt")


def test_a_restart_that_the_user_asks_for():
    crew = training()
    crew.feed(0, Requested(Request.RESTART))
    crew.until(4.0)
    ended = last(crew, Topic.ROUND_ENDED)
    assert ended.details == {"cause": "user"}
    assert ended.text == "the user has asked for a restart"
    crew.feed(0, Requested(Request.STOP))
    crew.until(6.0)
    over = last(crew, Topic.JOB_OVER)
    assert (over.details["result"], over.details["exit_code"]) == ("stopped", 143)


def test_a_hang_is_reported_at_once_if_no_restart_is_left():
    crew = about_to_hang(max_restarts=0)
    stall(crew, 200.0)
    assert last(crew, Topic.HANG).details == {"node": "n1", "rank": 3, "seconds_left": 90.0}
    assert topics(crew).count(Topic.HANG) == 1
    assert topics(crew)[-1] is Topic.JOB_OVER


def test_workers_that_hang_make_a_step_and_hang_again():
    crew = about_to_hang(max_restarts=0)
    stall(crew, 11.0)
    assert topics(crew).count(Topic.HANG) == 1
    stall(crew, 200.0)
    assert topics(crew).count(Topic.HANG) == 2


def test_failures_one_after_the_other_are_a_storm():
    crew = training(max_restarts=100)
    for number in range(7):
        crew.checkpoint = f"/c/{number}.pt"
        fail(crew, tail=f"ValueError: {number}")
        crew.until(crew.now + 40.0)
    storms = [notify for notify in crew.notifications if notify.topic is Topic.RESTART_STORM]
    assert [storm.round for storm in storms] == [2, 5]
    assert storms[0].text.startswith("3 rounds have failed within ")
    assert storms[0].text.endswith(" s, the last one: rank 2 on n1 exited with code 1")


def test_failures_that_are_far_apart_are_none():
    crew = training(max_restarts=100, beat=2.0)
    for number in range(4):
        crew.checkpoint = f"/c/{number}.pt"
        fail(crew, tail=f"ValueError: {number}")
        crew.until(crew.now + 400.0)
    assert Topic.RESTART_STORM not in topics(crew)


def test_a_lost_node_and_the_last_spare():
    crew = training("n0 n1 n2", fewest=2, most=2)
    crew.kill(1)
    crew.until(6.0)
    ended = last(crew, Topic.ROUND_ENDED)
    assert ended.details == {"cause": "node lost"}
    assert ended.text == "the agent on n1 was lost: its host confirmed that it exited"
    exhausted = last(crew, Topic.SPARES_EXHAUSTED)
    assert exhausted.text == "no spare is left: the next node that is lost will not be replaced"
    assert topics(crew).count(Topic.SPARES_EXHAUSTED) == 1


def test_the_last_spare_takes_the_place_of_the_lost_head():
    crew = training("n0 n1 n2 n3", fewest=2, most=3)
    crew.kill(0)
    crew.until(20.0)
    assert crew.heads == [1]
    assert topics(crew)[1:] == [Topic.ROUND_ENDED, Topic.SPARES_EXHAUSTED, Topic.ROUND_BEGAN]
    exhausted, began = crew.notifications[-2:]
    assert (exhausted.round, exhausted.details) == (began.round, {"nodes": 3})


def test_another_head_reports_that_it_leads_once_a_quorum_follows_it():
    crew = training("n0 n1 n2", fewest=2)
    crew.kill(0)
    crew.until(10.0)
    _, ended, *rest = crew.notifications
    assert ended.topic is Topic.ROUND_ENDED
    assert ended.details == {"cause": "node lost"}
    assert (ended.round, ended.text) == (0, "the head on n0 was lost: n1 leads now")
    assert [notify.topic for notify in rest] == [Topic.ROUND_BEGAN]


def test_of_a_head_that_dies_between_two_rounds_no_round_ends():
    """The end of the last round was sent, and the next round never began."""
    crew = training("n0 n1 n2", fewest=1)
    crew.checkpoint = None
    fail(crew)
    assert topics(crew) == [Topic.ROUND_BEGAN, Topic.ROUND_ENDED]
    crew.checkpoint = ""
    crew.kill(0)
    crew.until(20.0)
    assert topics(crew)[2:] == [Topic.ROUND_BEGAN]


def an_end(number):
    return RoundEnded(number, -10.0, 0.0, (EndReason.LOSS,))


def test_a_head_that_leads_again_knows_nothing_of_its_spares_before():
    notifications = Notifications()
    began = RoundBegan(*(0, "n[0-1]", 2, 4, (), (), True, ("n2",), "", "", (), "", 1), saves=False)
    notifications.note(began, 0.0)
    notifications.note(HeadDeposed("n0", "n1"), 1.0)
    notifications.note(HeadChanged("n1", "n0", 2, -10.0, an_end(3), was_running=True), 60.0)
    assert notifications.note(NodeLost("n2", "it is gone"), 61.0) == []


def test_a_storm_is_of_one_head():
    notifications = Notifications()
    failure = Failure(0, 0, "n0", 1, 0, -1.0, stopped=False, tail="")
    for number in range(STORM):
        if number == STORM - 1:
            notifications.note(HeadDeposed("n0", "n1"), 1.0)
            notifications.note(HeadChanged("n1", "n0", 2, -10.0), 2.0)
        ended = RoundEnded(number, -1.0, -1.0, (EndReason.FAILURE,), (failure,), (), 4)
        found = notifications.note(ended, 3.0)
        assert [each.topic for each in found] == [Topic.ROUND_ENDED]


def test_a_node_that_is_unfit_is_reported_once_by_all_heads():
    crew = Crew("n0 n1 n2 n3", fewest=2, health=True)
    crew.start(0, 1, 2, 3)
    crew.feed(3, HealthFound("a GPU is broken"))
    for agent in (0, 1, 2):
        crew.feed(agent, HealthFound())
    crew.until(8.0)
    crew.kill(0)
    crew.until(30.0)
    assert crew.heads == [1]
    assert Topic.ROUND_ENDED in topics(crew)
    assert topics(crew).count(Topic.NODE_CORDONED) == 1


def test_of_two_heads_one_reports_that_it_has_taken_over():
    crew = training("n0 n1 n2", fewest=1)
    before = len(crew.notifications)
    crew.cut([0], [1, 2])
    crew.until(30.0)
    assert [n.text for n in crew.notifications[before:] if "the head on" in n.text] == [
        "the head on n0 was lost: n1 leads now"
    ]


def test_a_cordoned_node_is_reported_once():
    crew = training("n0 n1 n2", fewest=2)
    crew.feed(2, HealthFound("GPU 1 ECC: 3 uncorrected memory errors"))
    crew.until(8.0)
    crew.feed(0, Diagnosed(""))
    (cordoned,) = [notify for notify in crew.notifications if notify.topic is Topic.NODE_CORDONED]
    assert cordoned.text == "n2 is cordoned: GPU 1 ECC: 3 uncorrected memory errors"
    assert cordoned.details["node"] == "n2"
    assert cordoned.details["reason"] == "GPU 1 ECC: 3 uncorrected memory errors"


def test_the_end_of_a_round_names_the_node_that_is_unfit():
    crew = Crew("n0 n1 n2", fewest=2, health=True)
    crew.start(0, 1, 2)
    for agent in (0, 1, 2):
        crew.feed(agent, HealthFound())
    crew.until(5.0)
    crew.feed(2, HealthFound("GPU 3: does not answer"))
    crew.until(15.0)
    for agent in (0, 1):
        crew.feed(agent, HealthFound())
    crew.until(30.0)
    ended, why = last(crew, Topic.ROUND_ENDED), "n2 is cordoned: GPU 3: does not answer"
    assert (ended.text, ended.details) == (why, {"cause": "node unfit"})
    (found,) = report([crew.launch(0)]).ends
    assert (found.text, found.lost) == (why, (why,))
    assert [past.why for past in crew.past_rounds()] == [why]


def test_a_hang_is_reported_as_on_the_console():
    crew = about_to_hang()
    stall(crew, 11.0)
    hang = last(crew, Topic.HANG)
    assert hang.details == {"node": "n1", "rank": 3}
    assert hang.text in crew.said
    assert hang.text.startswith("no step for 10 s: the workers hang")
    assert topics(crew)[1:] == [Topic.HANG, Topic.ROUND_ENDED, Topic.ROUND_BEGAN]
    assert last(crew, Topic.ROUND_ENDED).details["cause"] == "hang"


def test_a_hang_that_is_nobodys_is_reported_in_words():
    crew = about_to_hang()
    crew.where = {0: (), 1: ()}
    stall(crew, 17.0)
    ended = last(crew, Topic.ROUND_ENDED)
    assert ended.text == "the workers hung"
    assert ended.details == {"cause": "hang", "exit_code": 124}


def test_a_straggler_is_reported_as_on_the_console():
    crew = keeping_pace()
    keep_pace(crew, 1)
    make_steps(crew, 40.0)
    (straggler,) = [notify for notify in crew.notifications if notify.topic is Topic.STRAGGLER]
    assert straggler.details == {"node": "n1"}
    assert straggler.text in crew.said


def near_the_end(**settings):
    crew = Crew("n0 n1", **SETTINGS | settings)
    crew.ends_at = 1000.0
    crew.steps = dict.fromkeys((0, 1), (100, 100))
    crew.start(0, 1)
    crew.until(2.0)
    for agent in (0, 1):
        crew.feed(agent, seen(steps=(100, 100)))
    return crew


def test_notice_is_reported_once_in_a_round():
    crew = near_the_end()
    crew.until(960.0)
    (notice,) = [notify for notify in crew.notifications if notify.topic is Topic.NOTICE]
    assert notice.text in crew.said
    assert notice.details["seconds_left"] == pytest.approx(53, abs=2)


def test_a_job_that_is_requeued_says_so_in_place_of_its_end():
    crew = near_the_end(requeueing=Requeueing(on=(EndKind.TIME_LIMIT,), most=9))
    crew.until(1000.0)
    requeued = crew.notifications[-1]
    assert requeued.topic is Topic.JOB_REQUEUED
    assert requeued.details["result"] == "time-limit"
    assert Topic.JOB_OVER not in topics(crew)


def test_a_spare_that_comes_back_can_be_the_last_one_again():
    crew = training("n0 n1 n2", fewest=2, most=2, grow=Grow.NEVER)
    for _ in range(2):
        crew.cut([2], [0, 1])
        crew.until(crew.now + 30.0)
        crew.mend()
        crew.until(crew.now + 30.0)
    assert topics(crew).count(Topic.SPARES_EXHAUSTED) == 2


def test_a_node_that_is_unfit_from_the_start_of_another_run():
    crew = Crew("n0 n1 n2", fewest=2, first_round=5, health=True)
    crew.start(0, 1, 2)
    crew.feed(2, HealthFound("a GPU is broken"))
    for agent in (0, 1):
        crew.feed(agent, HealthFound())
    crew.until(8.0)
    (cordoned,) = [notify for notify in crew.notifications if notify.topic is Topic.NODE_CORDONED]
    assert cordoned.round == 5
