"""A head and its quorum."""

from __future__ import annotations

from story import a_job

from hpclaunch.core.consensus.leader_lease import LeaderLease
from hpclaunch.core.consensus.presence import Presence
from hpclaunch.core.consensus.rotation import Rotation


def test_an_answer_to_an_earlier_tenure_is_none_to_this_one():
    """Agent 0 leads in terms 0 and 3, and counts its orders from 1 each time."""
    job = a_job("n0 n1 n2")
    presences = [Presence(job.timing) for _ in job.places]
    lease = LeaderLease(Rotation(job.places), job.timing, 0, presences, tenure=3)
    assert [term for term in range(8) if lease.is_of_ours(term)] == [3, 6]
