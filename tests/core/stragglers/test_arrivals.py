"""The times at which the workers of one agent began their collectives."""

from __future__ import annotations

from hpclaunch.core.protocol.model import Arrivals
from hpclaunch.core.stragglers.arrivals import together

US = 1000


def trace(first, *times):
    return {"0": {first + i: time * US for i, time in enumerate(times)}}


def test_half_of_them_and_the_last():
    found = together({3: trace(7, 10, 20), 4: trace(7, 15, 22), 5: trace(7, 11, 90)})
    assert found == (Arrivals("0", 3, 1e-5, (7, 8), (1, 12), (4, 68), (4, 5)),)


def test_what_all_remember():
    (found,) = together({0: trace(7, 10, 20, 30), 1: trace(8, 21, 31, 41)})
    assert (found.numbers, found.last) == ((8, 9), (1, 1))


def test_numbers_that_are_left_out():
    (found,) = together({0: {"0": {1: 10, 2: 20, 9: 90}}})
    assert found.numbers == (1, 2, 9)


def test_each_group_by_itself():
    found = together({0: {"0": {1: 10}, "tp": {5: 30}}, 1: {"0": {1: 20}, "pp": {2: 7}}})
    assert [(a.group, a.members, a.numbers, a.last) for a in found] == [
        ("0", 2, (1,), (1,)),
        ("pp", 1, (2,), (1,)),
        ("tp", 1, (5,), (0,)),
    ]


def test_of_many_all_agents_choose_the_same():
    some, others = ({"0": dict.fromkeys(range(first, first + 1000), 1)} for first in (3, 40))
    (a,), (b,) = together({0: some}), together({8: others})
    assert 200 < len(a.numbers) <= 256
    assert 200 < len(b.numbers) <= 256
    assert len(set(a.numbers) & set(b.numbers)) > 200
    (few,) = together({0: some}, agents=1000)
    assert 30 < len(few.numbers) <= 64


def test_nothing():
    assert together({}) == together({0: {}}) == together({0: {"0": {}}}) == ()
    assert together({0: {"0": {1: 5}}, 1: {"0": {2: 5}}}) == ()
