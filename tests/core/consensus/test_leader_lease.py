"""A head and its quorum."""

from __future__ import annotations

import math
from typing import Any

from story import a_job

from hpclaunch.core.consensus.leader_lease import LeaderLease
from hpclaunch.core.consensus.presence import Presence
from hpclaunch.core.consensus.rotation import Rotation
from hpclaunch.core.protocol.configuration import Configuration, voters


def test_an_answer_to_an_earlier_tenure_is_none_to_this_one():
    """Agent 0 leads in terms 0 and 3, and counts its orders from 1 each time."""
    job = a_job("n0 n1 n2")
    presences = [Presence(job.timing) for _ in job.places]
    lease = LeaderLease(Rotation(job.places), job.timing, 0, presences, tenure=3)
    assert [term for term in range(8) if lease.is_of_ours(term)] == [3, 6]


def leading(**more: Any) -> tuple[LeaderLease, list[Presence]]:
    job = a_job("n0 n1 n2", loss=3.0, beat=0.5)
    presences = [Presence(job.timing) for _ in job.places]
    return LeaderLease(Rotation(job.places), job.timing, 0, presences, **more), presences


def hear_first(presence: Presence, now: float, version: int = -1) -> None:
    presence.hear(now, term=0, version=version, answers=-1)


def test_who_has_no_configuration_cannot_vote_before_the_first_order():
    lease, (_, one, two) = leading()
    lease.renew(0.0)
    assert lease.until == 4.25
    hear_first(one, 0.25)
    hear_first(two, 0.25)
    lease.renew(0.25)
    assert lease.until == 4.5
    one.answered.send(1, 0.5)
    two.answered.send(2, 0.75)
    one.answered.send(3, 2.0)
    two.answered.send(4, 2.0)
    lease.renew(2.0)
    assert lease.until == 5.0  # of the first order to one of the two
    assert one.answered.hear(3)
    lease.renew(2.5)
    assert lease.until == 6.25


def test_who_has_a_configuration_of_another_head_may_vote_at_any_time():
    lease, (_, one, two) = leading()
    for presence in (one, two):
        hear_first(presence, 0.0, version=0)
        presence.answered.send(1, 0.0)
    lease.renew(0.5)
    assert lease.until == -math.inf


def test_who_is_started_anew_may_have_voted_before():
    lease, (_, one, two) = leading()
    for presence in (one, two):
        hear_first(presence, 0.0)
        presence.start_anew()
        hear_first(presence, 0.25)
        presence.answered.send(1, 0.25)
    lease.renew(0.5)
    assert lease.until == -math.inf


def test_once_the_lease_was_over_another_head_may_have_been_elected():
    lease, (_, one, _) = leading()
    lease.renew(0.0)
    lease.renew(4.0)
    assert lease.until == 8.25
    lease.renew(8.25)
    assert lease.until == -math.inf
    hear_first(one, 9.0)
    one.answered.send(1, 9.0)
    assert one.answered.hear(1)
    lease.renew(9.5)
    assert lease.until == 13.25


def test_where_nobody_else_can_lead_nobody_else_is_needed():
    lease, _ = leading(elects=False)
    for now in (0.0, 60.0):
        lease.renew(now)
        assert lease.holds(now)


def test_who_stands_where_another_did_counts_after_a_vote_lease():
    lease, (_, one, _) = leading(configuration=Configuration(1, voters(0, range(3))), tenure=3)
    one.hear(0.0, term=3, version=-1, answers=-1)
    for serial in range(11):
        one.answered.send(serial, serial / 2)
        assert one.answered.hear(serial)
        lease.renew(serial / 2)
        assert lease.holds(serial / 2) == (serial / 2 >= 4.5)
