"""Stories of workers that hang: who is asked, who is at fault, and what follows."""

from __future__ import annotations

import pytest
from crew import Crew
from story import seen

from hpclaunch.core.protocol.events import WorkerExited, WorkersGone
from hpclaunch.core.protocol.model import EXIT_HUNG, RankState
from hpclaunch.observe.job_report import report

LOOK = 0.5


def waiting(rank):
    return RankState(rank, "train.py:13, <module>", "S", waits=("0", 26, "all_reduce"))


def loading(rank, **fields):
    return RankState(rank, "loader.py:88, next_batch", "S", **fields)


def training(hosts="n0 n1", **settings):
    """Two agents with two workers each, of which rank 3 is about to hang."""
    crew = Crew(hosts, **settings)
    crew.start(*range(len(hosts.split())))
    crew.until(2.0)
    crew.where = {0: (waiting(0), waiting(1)), 1: (waiting(2), loading(3))}
    return crew


def stall(crew, seconds, agents=(0, 1), **fields):
    """Let no worker make progress for so long, or until the next round, while the agents look."""
    begun, before = crew.now, rounds(crew)
    while crew.now - begun < seconds and rounds(crew) == before:
        crew.until(crew.now + LOOK)
        for agent in agents:
            if agent in crew.running:
                crew.feed(agent, seen(crew.now - begun, **fields))


def rounds(crew):
    return sorted(crew.parts)


def test_workers_that_all_hang_are_asked_and_the_culprit_is_named():
    crew = training()
    stall(crew, 9.0)
    assert rounds(crew) == [0]
    stall(crew, 9.0)
    assert rounds(crew) == [0]  # they did something in between
    stall(crew, 11.0)
    assert rounds(crew) == [0, 1]
    account, restart = crew.said[-3:-1]
    assert account.splitlines() == [
        "no step for 10 s: the workers hang",
        "  ranks 0-2 wait in all_reduce number 26",
        "  rank 3 on n1 has not reached it: it is in loader.py:88, next_batch",
        "  the stacks of all ranks: round-0/evidence in the log directory",
    ]
    assert restart == "rank 3 on n1 hung; restart 1 of 3"


def test_as_long_as_one_does_something_nobody_hangs():
    crew = training()
    for _ in range(4):
        stall(crew, 11.0, agents=[0])
        crew.feed(1, seen(0.0))
    stall(crew, 9.0)
    assert rounds(crew) == [0]


def test_an_agent_that_does_not_answer_is_not_waited_for():
    crew = training()
    del crew.where[1]
    stall(crew, 17.0)
    assert rounds(crew) == [0, 1]
    assert "  ranks 2-3 on n1 did not report where they are" in crew.said[-3].splitlines()
    assert "rank 2 on n1 hung; restart 1 of 3" in crew.said


def test_an_agent_that_does_not_answer_and_whose_workers_use_the_cpu():
    crew = training()
    del crew.where[1]
    stall(crew, 99.0, busy=True)
    assert rounds(crew) == [0]


def test_workers_that_continue_while_they_are_asked():
    crew = training()
    del crew.where[1]
    stall(crew, 10.5)
    crew.feed(1, seen(0.0))
    stall(crew, 9.0)
    assert rounds(crew) == [0]


def test_a_culprit_that_uses_the_cpu_is_given_more_time():
    crew = training()
    crew.where[1] = (waiting(2), loading(3, busy=True))
    stall(crew, 99.0, busy=True)
    assert rounds(crew) == [0]
    stall(crew, 110.0, busy=True)
    assert rounds(crew) == [0, 1]


@pytest.mark.parametrize("max_restarts", [3, 0])
def test_reasons_for_more_time_do_not_multiply_before_the_fifth_step(max_restarts):
    """A save before the fifth step, by a worker that uses the CPU, perhaps in the last round."""
    crew = training(early_hang=20.0, max_restarts=max_restarts)
    crew.where[1] = (waiting(2), loading(3, busy=True))
    saving = {"steps": (4, 4), "patient": True, "busy": True}
    stall(crew, 199.0, **saving)
    assert (rounds(crew), crew.verdicts) == ([0], {})
    crew.feed(1, seen(0.0, **saving))
    stall(crew, 202.0, **saving)
    assert rounds(crew) == [0, 1] if max_restarts else crew.verdicts


def test_workers_in_a_debugger_are_left_alone():
    crew = training()
    crew.where[0] = (waiting(0), loading(1, debugged=True))
    stall(crew, 1000.0)
    assert rounds(crew) == [0]


def test_workers_that_have_ended_do_not_count():
    crew = training()
    crew.where[0] = (waiting(0), waiting(1))
    for rank in (2, 3):
        crew.feed(1, WorkerExited(rank, 0, 0))
    crew.running.pop(1)
    crew.feed(1, WorkersGone())
    stall(crew, 12.0)
    assert rounds(crew) == [0, 1]
    assert any("ranks 2-3 on n1 have ended" in text for text in crew.said)


def test_the_last_round_is_given_more_time():
    crew = training(max_restarts=0)
    stall(crew, 12.0)
    assert crew.said[-1].splitlines()[-1] == (
        "  no restart is left: unless they make a step, the job ends in 90 s"
    )
    stall(crew, 99.0)
    assert not crew.verdicts
    crew.feed(0, seen(0.0))
    stall(crew, 101.0)
    (verdict,) = set(crew.verdicts.values())
    assert verdict.code == EXIT_HUNG
    assert verdict.reason.startswith("rank 3 on n1 hung in round 0, and no restarts were allowed")


def test_a_node_that_has_hung_twice_is_replaced_by_a_spare():
    crew = training("n0 n1 n2", most=2, fewest=2, loss=3.0)
    stall(crew, 12.0)
    stall(crew, 12.0)
    assert [sorted(parts) for _, parts in sorted(crew.parts.items())] == [[0, 1], [0, 1], [0, 2]]


def test_hangs_are_not_looked_for_if_the_user_does_not_want_it():
    crew = training(hang=0.0)
    stall(crew, 100.0)
    assert rounds(crew) == [0]


def test_a_head_that_is_lost_while_it_asks():
    crew = training("n0 n1 n2", fewest=2, loss=3.0)
    crew.where = {0: (), 1: ()}
    stall(crew, 10.5, agents=(0, 1, 2))
    crew.kill(0)
    crew.until(crew.now + 5.0)
    _, second = rounds(crew)
    assert set(crew.parts[second]) == {1, 2}
    crew.where = {1: (waiting(2), loading(3)), 2: (waiting(0), waiting(1))}
    stall(crew, 12.0, agents=(1, 2))
    assert len(rounds(crew)) == 3
    assert "rank 3 on n1 hung; restart 1 of 3" in crew.said


def test_while_the_workers_of_a_single_agent_stood_still_they_did_not_train():
    crew = training(most=1, fewest=1)
    crew.where = {0: (waiting(0), loading(1))}
    stall(crew, 11.0, agents=(0,))
    (end,) = report([crew.launch()]).ends
    assert end.seen - end.at >= 10.0
