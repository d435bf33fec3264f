"""Workers share their task's CPUs: all of them, nobody's twice."""

import os

import pytest

from hpclaunch.system import affinity


@pytest.fixture
def two_sockets(monkeypatch):
    """2 sockets x 4 cores x 2 threads, numbered as Linux does: CPU n and n + 8 are one core."""
    known = {"physical_package_id": lambda n: n % 8 // 4, "core_id": lambda n: n % 4}
    monkeypatch.setattr(affinity, "_read", lambda cpu, what: known[what](cpu))
    return range(16)


def shares(cpus, slots):
    return [affinity.share(cpus, slot, slots) for slot in range(slots)]


def test_cores_stay_whole_and_sockets_together(two_sockets):
    assert shares(two_sockets, 2) == [(0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)]
    assert affinity.share(two_sockets, 3, 4) == (6, 7, 14, 15)


def test_more_workers_than_cores_share_them_by_threads(two_sockets):
    assert sorted(cpu for s in shares(two_sockets, 16) for cpu in s) == list(two_sockets)
    assert all(len(s) == 1 for s in shares(two_sockets, 16))


@pytest.mark.parametrize("slots", range(1, 17))
def test_every_cpu_has_one_owner(two_sockets, slots):
    taken = [cpu for s in shares(two_sockets, slots) for cpu in s]
    assert sorted(taken) == list(two_sockets)


def test_more_workers_than_cpus_have_no_share():
    assert affinity.share((3,), 0, 4) == ()


def test_this_machine():
    cpus = affinity.available()
    assert set(cpus) == os.sched_getaffinity(0)
    assert affinity.share(cpus, 0, 1) == cpus
