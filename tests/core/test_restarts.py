"""Who is the cause of a failed round, and is there another round?"""

from __future__ import annotations

import pytest

from hpclaunch.core.model import Failure, WorkerExit
from hpclaunch.core.restarts import (
    MAX_CONSEQUENCES,
    failed,
    how,
    in_order,
    signal_name,
    verdict_for,
)


def failure(rank, at, code=1, signal=0, **fields):
    tail = f"rank {rank} was here"
    return Failure(0, rank, f"n{rank // 2}", code, signal, at, tail=tail, **fields)


# Failures, and their ranks with the cause first.
CAUSES = {
    "the only one": ([failure(3, 5.0)], [3]),
    "the earliest": ([failure(0, 5.2), failure(1, 5.0), failure(2, 5.1)], [1, 2, 0]),
    "a signal before an exit at the same moment": (
        [failure(0, 5.0), failure(1, 5.0, 137, 9)],
        [1, 0],
    ),
    "an exit before a later signal": ([failure(0, 5.0), failure(1, 5.1, 134, 6)], [0, 1]),
    "a fork server, however late it is missed": (
        [failure(0, 5.0), failure(2, 5.2, 137, 9, with_server=True), failure(1, 5.1, 139, 11)],
        [2, 0, 1],
    ),
    "else the lower rank": ([failure(2, 5.0), failure(1, 5.0)], [1, 2]),
}


@pytest.mark.parametrize(("failures", "expected"), CAUSES.values(), ids=CAUSES)
def test_cause(failures, expected):
    assert [f.rank for f in in_order(failures)] == expected


@pytest.mark.parametrize(
    ("used", "budget", "ends"), [(0, 3, False), (2, 3, False), (3, 3, True), (0, 0, True)]
)
def test_budget(used, budget, ends):
    assert (verdict_for([failure(0, 1.0)], used, budget) is not None) is ends


def test_the_verdict_has_the_code_of_the_cause():
    """128 + n for signal n, as a shell has it."""
    followers = [failure(1, 5.3), failure(2, 5.4)]
    verdict = verdict_for([*followers, failure(0, 5.0, 139, 11)], used=2, budget=2)
    assert verdict.code == 139
    assert verdict.restarts == 2
    assert verdict.cause.rank == 0
    assert verdict.cause.tail == "rank 0 was here"
    assert verdict.reason == (
        "rank 0 on n0 was killed by SIGSEGV in round 0, and all 2 restarts are used up"
    )
    assert [(f.rank, f.tail) for f in verdict.consequences] == [(1, ""), (2, "")]


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (0, "no restarts were allowed (--max-restarts 0)"),
        (1, "the only restart is used up"),
        (2, "all 2 restarts are used up"),
    ],
)
def test_the_verdict_says_what_was_spent(budget, words):
    verdict = verdict_for([failure(0, 1.0)], used=budget, budget=budget)
    assert verdict.reason == f"rank 0 on n0 exited with code 1 in round 0, and {words}"


def test_a_verdict_stays_small_however_many_fail():
    verdict = verdict_for([failure(rank, float(rank)) for rank in range(4096)], 0, 0)
    assert len(verdict.consequences) == MAX_CONSEQUENCES


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (failure(3, 0.0, 2), "rank 3 on n1 exited with code 2"),
        (failure(0, 0.0, 137, 9), "rank 0 on n0 was killed by SIGKILL"),
        (failure(0, 0.0, 168, 40), "rank 0 on n0 was killed by signal 40"),
        (
            failure(3, 0.0, 137, 9, with_server=True),
            "the fork server on n1 was killed with its workers",
        ),
    ],
)
def test_how(what, words):
    assert how(what) == words


def test_signals_without_a_name():
    assert signal_name(15) == "SIGTERM"
    assert signal_name(41) == "signal 41"


@pytest.mark.parametrize(
    ("code", "signum", "stopped", "expected"),
    [
        (0, 0, False, False),
        (1, 0, False, True),
        (143, 15, False, True),  # by somebody else's hand
        (143, 15, True, False),
        (137, 9, True, False),
        (1, 0, True, True),
        (134, 6, True, True),
    ],
)
def test_what_counts_as_a_failure(code, signum, stopped, expected):
    assert failed(WorkerExit(0, code, signum, 0.0, stopped, "")) is expected


def test_what_was_stopped_is_never_the_cause():
    early = Failure(0, 1, "n1", 1, 0, at=1.0, tail="", stopped=True)
    late = Failure(0, 2, "n2", 7, 0, at=2.0, tail="")
    assert in_order([early, late]) == (late, early)
