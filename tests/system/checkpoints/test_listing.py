"""Listings look at several files at once on a slow disk."""

import threading

import pytest

from hpclaunch.system.checkpoints import listing
from hpclaunch.system.checkpoints.listing import AT_ONCE, PROBE, of_each

SLOW = 1.0
ITEMS = range(4 * PROBE)


class Disk:
    """A disk with its own clock; each look takes one of the given times."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.now = seconds, 0.0
        self.threads: set[int] = set()

    def look(self, item: int) -> int:
        self.now += self.seconds[item % len(self.seconds)]
        self.threads.add(threading.get_ident())
        return item

    def monotonic(self) -> float:
        return self.now


def looked(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Look at all items in order; return the threads that did."""
    monkeypatch.setattr(listing, "time", disk)
    assert list(of_each(disk.look, ITEMS, SLOW)) == list(ITEMS)
    return disk.threads


def test_one_after_the_other_where_it_is_fast(monkeypatch):
    assert looked(Disk(0.1), monkeypatch) == {threading.get_ident()}


def test_a_single_long_one_says_nothing_of_the_disk(monkeypatch):
    """The process had to wait for a CPU, longer than all others took together."""
    assert looked(Disk(1000.0, *[0.1] * PROBE), monkeypatch) == {threading.get_ident()}


def test_several_at_once_where_it_is_slow(monkeypatch):
    """The looks wait for each other: one by one they would never end."""
    disk = Disk(1.1)
    barrier = threading.Barrier(AT_ONCE)

    def look(item: int) -> int:
        if item >= PROBE:
            barrier.wait(60)
        return disk.look(item)

    monkeypatch.setattr(listing, "time", disk)
    assert list(of_each(look, ITEMS, SLOW)) == list(ITEMS)


def test_whoever_has_seen_enough_ends_it(monkeypatch):
    disk = Disk(1.1)
    monkeypatch.setattr(listing, "time", disk)
    assert next(filter(lambda item: item > PROBE, of_each(disk.look, ITEMS, SLOW))) == PROBE + 1
