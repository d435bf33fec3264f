"""A head and its quorum."""

from __future__ import annotations

from typing import Any

import pytest
from story import a_job

from hpclaunch.core.consensus.leader_lease import LeaderLease
from hpclaunch.core.consensus.presence import Presence
from hpclaunch.core.consensus.rotation import Rotation
from hpclaunch.core.protocol.configuration import Configuration, JobRecord, voters
from hpclaunch.core.protocol.losses import Loss


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


def answer(lease: LeaderLease, agent: int, now: float, version: int = -1) -> None:
    """The agent answers an order that was sent just now."""
    presence = lease._presences[agent]
    serial = round(100 * now) + 1
    presence.answered.send(serial, now)
    presence.hear(now, term=lease.tenure, version=version, answers=serial)
    lease.note_answer(agent, version, now)


def reconfigured(lease: LeaderLease, now: float) -> str:
    """Return the voters, and after a bar the old ones, where both must agree."""
    lease.renew(now)
    lease.reconfigure(JobRecord(), now)
    lease.drop_old_configuration(now)
    new, old = lease.configuration.voters, lease.configuration.old
    return new.agents if old is None else f"{new.agents} | {old.agents}"


def test_the_first_head_is_the_only_voter_until_others_have_come():
    lease, (_, one, two) = leading()
    lease.renew(9.0)
    assert lease.until == 13.25
    assert reconfigured(lease, 9.0) == "0"
    for presence in (one, two):
        presence.hear(9.5, term=0, version=-1, answers=-1)
    assert reconfigured(lease, 9.5) == "0-2"


def test_who_has_just_got_a_vote_is_bound_until_a_vote_lease_has_passed():
    """Nobody else can have given it the configuration, without which it has no vote."""
    lease, (_, one, two) = leading()
    for presence in (one, two):
        presence.hear(9.0, term=0, version=-1, answers=-1)
    assert reconfigured(lease, 9.0) == "0-2"
    lease.renew(10.0)
    assert lease.until == 13.25
    lease.renew(14.0)
    assert not lease.holds(14.0)


@pytest.mark.parametrize("has_one", [True, False])
def test_who_follows_a_head_counts_only_as_a_voter(has_one):
    """Another start of an agent has no configuration, and no vote until one lists it."""
    lease, _ = leading(configuration=Configuration(1, voters(2, range(3))), tenure=3)
    answer(lease, 1, 0.0, version=1 if has_one else -1)
    lease.renew(0.0)
    assert lease.holds(0.0) is has_one


def test_another_start_of_one_that_was_listed_but_not_heard_has_no_vote():
    lease, (_, one, _) = leading(configuration=Configuration(1, voters(2, range(3))), tenure=3)
    one.expect(0.0)
    answer(lease, 2, 0.0, version=1)
    assert reconfigured(lease, 0.0) == "0-2 | 0-2"
    answer(lease, 1, 1.0)
    assert not one.has_configuration
    assert reconfigured(lease, 1.0) == "0,2 | 0-2"


def test_another_start_in_a_place_joins_once_the_last_one_is_out():
    lease, (_, one, _) = leading()
    for agent in (1, 2):
        answer(lease, agent, 0.0)
    assert reconfigured(lease, 0.0) == "0-2"
    one.give_up(0.0, Loss.SILENT)
    one.start_anew(excludes_last=True)
    answer(lease, 1, 1.0)
    one.come_back()
    assert reconfigured(lease, 1.0) == "0,2 | 0-2"
    answer(lease, 0, 1.0, version=9)
    answer(lease, 1, 1.5)
    assert not one.has_configuration
    answer(lease, 2, 1.5, version=9)
    assert reconfigured(lease, 1.5) == "0,2"
    assert reconfigured(lease, 1.5) == "0-2 | 0,2"
    assert one.has_configuration


def test_the_dead_need_no_new_configuration():
    lease, (_, one, two) = leading()
    for agent in (1, 2):
        answer(lease, agent, 0.0)
    assert reconfigured(lease, 0.0) == "0-2"
    for presence in (one, two):
        presence.die(1.0, Loss.EXITED)
    assert reconfigured(lease, 1.0) == "0"
    lease.renew(60.0)
    assert lease.holds(60.0)


def test_where_nobody_else_can_lead_nobody_else_is_needed():
    lease, _ = leading(elects=False)
    for now in (0.0, 60.0):
        lease.renew(now)
        assert lease.holds(now)
