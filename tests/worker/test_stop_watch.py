"""The distinction between a process that somebody stopped and a job that was suspended."""

from __future__ import annotations

import math

from hpclaunch.worker.stop_watch import StopWatch


def looks(*seen: tuple[float, set[int]]) -> list[list[int]]:
    watch = StopWatch(limit=2.0)
    return [watch.look(stopped, now) for now, stopped in seen]


def test_one_that_stays_stopped() -> None:
    assert looks((0, set()), (1, {4}), (2, {4}), (3, {4})) == [[], [], [], [4]]


def test_one_that_continues_in_time() -> None:
    assert looks((0, {4}), (1, {4}), (1.5, set()), (2, {4}), (3, {4})) == [[]] * 5


def test_each_has_its_own_time() -> None:
    assert looks((0, {4}), (1, {4, 5}), (2, {4, 5}), (3, {5})) == [[], [], [4], [5]]


def test_a_look_for_another_one_puts_nothing_off() -> None:
    watch = StopWatch(limit=2.0)
    watch.look({4}, 0.0)
    watch.look({4, 5}, 0.75)
    assert watch.due == 1.75
    watch.look({4, 5}, 1.75)
    assert watch.due == 2.0
    assert watch.look({4, 5}, 2.0) == [4]


def test_a_job_that_is_suspended() -> None:
    """This process is stopped after the other one, and continues before it."""
    assert looks((0, {4}), (0.5, {4}), (60, {4}), (61, {4}), (61.5, set())) == [[]] * 5


def test_it_looks_again_only_while_one_is_stopped() -> None:
    watch = StopWatch(limit=2.0)
    assert watch.due == math.inf
    watch.look({4}, 10.0)
    assert watch.due == 11.0
    watch.look(set(), 11.0)
    assert watch.due == math.inf
