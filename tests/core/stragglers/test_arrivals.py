"""When the workers of one agent began their collectives."""

from __future__ import annotations

from hpclaunch.core.protocol.model import Arrivals
from hpclaunch.core.stragglers.arrivals import together

US = 1000


def trace(first, *times):
    return {"0": {first + i: time * US for i, time in enumerate(times)}}


def test_half_of_them_and_the_last():
    found = together({3: trace(7, 10, 20), 4: trace(7, 15, 22), 5: trace(7, 11, 90)})
    assert found == (Arrivals("0", 3, 7, 1e-5, (1, 12), (4, 68), (4, 5)),)


def test_what_all_remember():
    (found,) = together({0: trace(7, 10, 20, 30), 1: trace(8, 21, 31, 41)})
    assert (found.first, found.last) == (8, (1, 1))


def test_a_gap_ends_it():
    (found,) = together({0: {"0": {1: 10, 2: 20, 9: 90}}})
    assert (found.first, len(found.last)) == (1, 2)


def test_each_group_by_itself():
    found = together({0: {"0": {1: 10}, "tp": {5: 30}}, 1: {"0": {1: 20}, "pp": {2: 7}}})
    assert [(a.group, a.first, a.last) for a in found] == [
        ("0", 1, (1,)),
        ("pp", 2, (1,)),
        ("tp", 5, (0,)),
    ]


def test_nothing():
    assert together({}) == together({0: {}}) == together({0: {"0": {}}}) == ()
    assert together({0: {"0": {1: 5}}, 1: {"0": {2: 5}}}) == ()
