"""The rank at fault in a hang."""

from __future__ import annotations

import pytest

from hpclaunch.core.hangs.judgement import judge
from hpclaunch.core.protocol.model import RankState

HOSTS = {rank: f"n{1 + rank // 4}" for rank in range(700)}


def waiting(rank, number=26, name="all_reduce", group="0", **fields):
    return RankState(rank, "train.py:13, <module>", "S", waits=(group, number, name), **fields)


def elsewhere(rank, place="loader.py:88, next_batch", state="S", **fields):
    return RankState(rank, place, state, **fields)


def judged(*states, ended=()):
    return judge({state.rank: state for state in states}, ended, HOSTS)


def test_the_one_that_does_not_wait():
    found = judged(*(waiting(rank) for rank in (0, 1, 2, 4, 5, 6, 7)), elsewhere(3))
    assert found.culprits == (3,)
    assert not found.may_take_long
    assert found.lines == (
        "ranks 0-2,4-7 wait in all_reduce number 26",
        "rank 3 on n1 has not reached it: it is in loader.py:88, next_batch",
    )


def test_several_that_do_not_wait():
    found = judged(waiting(0), waiting(1), elsewhere(6), elsewhere(7))
    assert found.culprits == (6, 7)
    assert found.lines[-1] == (
        "ranks 6-7 on n2 have not reached it: they are in loader.py:88, next_batch"
    )


def test_the_one_that_is_in_an_earlier_collective():
    found = judged(waiting(0), waiting(1), waiting(2, 25))
    assert found.culprits == (2,)
    assert found.lines == (
        "ranks 0-1 wait in all_reduce number 26",
        "rank 2 on n1 waits in all_reduce number 25, in train.py:13, <module>",
    )


def test_the_one_that_is_in_another_collective():
    found = judged(waiting(0), waiting(1), waiting(2, name="broadcast"))
    assert found.culprits == (2,)
    assert found.lines[-1] == (
        "rank 2 on n1 waits in broadcast number 26, in train.py:13, <module>"
    )


def test_the_one_that_is_in_a_collective_of_another_group():
    assert judged(waiting(0), waiting(1), waiting(2, group="1")).culprits == (2,)
    found = judged(waiting(0), waiting(2, group="1"))
    assert found.culprits == ()
    assert found.lines[-1] == "they wait for one another, in different collectives"


def receiving(rank, sender, number=7, group="0"):
    return waiting(rank, number, f"recv {rank}<-{sender}", group)


def test_the_one_that_sends_no_message():
    found = judged(waiting(0), waiting(1), receiving(2, 1), receiving(3, 2, number=8))
    assert found.culprits == (1,)
    assert found.lines[-1] == "rank 1 on n1 waits in all_reduce number 26, in train.py:13, <module>"
    assert judged(elsewhere(0), receiving(1, 0), receiving(2, 1)).culprits == (0,)


def test_ranks_that_wait_for_messages_of_one_another():
    found = judged(receiving(0, 1), receiving(1, 0, number=8))
    assert found.culprits == ()
    assert found.lines[-1] == "they wait for one another, in different collectives"


def test_the_ranks_of_a_smaller_group_are_not_those_of_the_job():
    found = judged(waiting(0), waiting(1), waiting(2), receiving(3, 1, group="5"))
    assert found.culprits == (3,)


def test_nobody_is_at_fault_if_all_wait_in_the_same_collective():
    found = judged(waiting(0), waiting(1))
    assert found.culprits == ()
    assert found.lines[-1].startswith("all have begun it: a network that loses data")


def test_the_others_wait_for_a_rank_that_has_ended():
    found = judged(waiting(0), waiting(1), ended=[2])
    assert found.culprits == (2,)
    assert found.lines[-1] == "rank 2 on n1 has ended"


@pytest.mark.parametrize(
    ("state", "text"), [("D", ", in the kernel"), ("T", ", stopped by a signal")]
)
def test_a_process_that_cannot_run(state, text):
    found = judged(*(elsewhere(rank, "a.py:1, f") for rank in (0, 1)), elsewhere(2, state=state))
    assert found.culprits == (2,)
    assert found.lines == (f"rank 2 on n1 is in loader.py:88, next_batch{text}",)


def test_the_one_that_is_in_another_place_than_most():
    found = judged(*(elsewhere(rank, "a.py:1, f") for rank in (0, 1)), elsewhere(2))
    assert found.culprits == (2,)
    assert judged(elsewhere(0, "a.py:1, f"), elsewhere(2)).culprits == ()


def test_where_all_are_if_none_stands_out():
    found = judged(*(elsewhere(rank) for rank in range(3)))
    assert found.culprits == ()
    assert found.lines == ("ranks 0-2 on n1 are in loader.py:88, next_batch",)
    found = judged(elsewhere(0, "a.py:1, f"), elsewhere(1), RankState(4))
    assert found.culprits == ()
    assert found.lines == (
        "rank 0 on n1 is in a.py:1, f",
        "rank 1 on n1 is in loader.py:88, next_batch",
        "rank 4 on n2 did not report where it is",
    )


def test_a_single_rank_is_at_fault_itself():
    found = judged(elsewhere(0))
    assert found.culprits == (0,)
    assert found.lines == ("rank 0 on n1 is in loader.py:88, next_batch",)
    assert judged(elsewhere(0), ended=[1]).culprits == (0,)
    found = judged(waiting(0))
    assert (found.culprits, len(found.lines)) == ((0,), 1)


def test_a_culprit_that_uses_the_cpu_may_only_take_long():
    assert judged(waiting(0), elsewhere(1, busy=True)).may_take_long
    assert not judged(waiting(0, busy=True), elsewhere(1)).may_take_long  # it waits in NCCL


def test_ranks_of_which_none_waits_may_all_take_long():
    assert judged(elsewhere(0, busy=True), elsewhere(1, busy=True)).may_take_long
    some = [elsewhere(rank, "a.py:1, f", busy=True) for rank in (0, 1)]
    assert judged(*some, elsewhere(2)).may_take_long


def test_a_rank_in_a_debugger():
    assert judged(waiting(0), elsewhere(1, debugged=True)).is_debugged
    assert not judged(waiting(0), elsewhere(1)).is_debugged


def test_without_evidence_nobody_is_at_fault():
    assert judged().culprits == ()


def test_names_of_files_cannot_be_commands_of_a_terminal():
    assert judged(elsewhere(0, "\x1b[2J.py:1, f")).lines == ("rank 0 on n1 is in ?[2J.py:1, f",)


def test_hundreds_of_ranks_are_summarized_in_a_few_lines():
    states = [waiting(rank, 20 + rank % 9) for rank in range(500)]
    states += [elsewhere(500 + rank, f"f{rank}.py:1, f") for rank in range(200)]
    assert len(judged(*states).lines) <= 10
