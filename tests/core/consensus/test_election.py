"""The ballots that a candidate counts."""

from __future__ import annotations

from story import a_job, report

from hpclaunch.core.consensus.election import Candidate
from hpclaunch.core.consensus.follower import Follower
from hpclaunch.core.consensus.rotation import Rotation
from hpclaunch.core.protocol.configuration import Configuration, voters
from hpclaunch.core.protocol.messages import Report
from hpclaunch.core.protocol.model import Phase


def test_a_later_start_of_an_agent_votes_though_the_last_one_has_sent_more():
    job = a_job("n0 n1 n2")
    follower = Follower(Rotation(job.places), job.timing, 1)
    candidate = Candidate[Report](follower)

    def hear(sender: int, name: str, serial: int) -> None:
        configuration = Configuration(1, voters(0, range(3)))
        fields = {"incarnation": name, "seeking": 1, "configuration": configuration}
        message = report(sender, Phase.IDLE, serial=serial, **fields).message
        candidate.hear(sender, message, now)

    now = 0.0
    hear(2, "a2", 1000)
    now = 100.0
    follower.seek(1, now)
    hear(1, "a1", 1)
    assert candidate.elected(now) is None  # the ballot of the last start is too old
    hear(2, "b2", 5)
    assert candidate.elected(now) is not None
    hear(2, "b2", 4)
    assert candidate.elected(now).votes[2].serial == 5
