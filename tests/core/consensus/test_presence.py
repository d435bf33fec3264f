"""The presence of another agent: what is heard of it, and the states that follow."""

from __future__ import annotations

import math

import pytest

from hpclaunch.core.consensus.contact import Acknowledged, LeaderLink
from hpclaunch.core.consensus.presence import GIVEN_UP, TRANSITIONS, PeerState, Presence
from hpclaunch.core.protocol.losses import Loss
from hpclaunch.core.protocol.timing import Timing

TIMING = Timing(loss=10.0, beat=1.0)
LEASE = TIMING.vote_lease  # 13 s


def heard(at=0.0, *, answered=None):
    """Return a presence that was heard at one time, and has answered what was sent at another."""
    one = Presence(TIMING)
    if answered is not None:
        one.answered.send(1, answered)
    one.hear(at, term=0, version=0, answers=1)
    return one


@pytest.mark.parametrize("is_closed", [False, True])
def test_how_long_a_lost_agent_has_been_silent(is_closed):
    one = heard(5.0)
    if is_closed:
        one.contact.close(7.0)
    one.give_up(15.0, Loss.SILENT)
    assert one.loss is Loss.SILENT
    assert one.loss.words(one.silent) == "it has been silent for 10 s"


def test_the_evidence_that_a_head_is_lost():
    link = LeaderLink(TIMING)
    link.is_dead = True
    assert link.evidence(8.0) == "its host confirmed that it exited"


def test_the_newest_message_that_was_answered():
    mine = Acknowledged()
    for serial, at in ((1, 10.0), (2, 11.0), (3, 12.0)):
        mine.send(serial, at)
    assert mine.lease_start is None
    assert mine.hear(2)
    assert mine.lease_start == 11.0
    assert not mine.hear(1), "that is old"
    assert mine.lease_start == 11.0


# What was known of an agent, and when it is looked at again.
DEADLINES = {
    "never heard": ([], math.inf),
    "never heard, and closed": ([("closed", 3.0)], math.inf),
    "heard": ([("heard", 5.0)], 15.0),
    "heard again": ([("heard", 5.0), ("heard", 6.0)], 16.0),
    "a closed connection says little": ([("heard", 5.0), ("closed", 7.0)], 15.0),
    "closed, then heard": ([("heard", 5.0), ("closed", 7.0), ("heard", 7.5)], 17.5),
}


@pytest.mark.parametrize(("history", "expected"), DEADLINES.values(), ids=DEADLINES)
def test_when_it_is_looked_at_again(history, expected):
    one = Presence(TIMING)
    for what, when in history:
        if what == "heard":
            one.hear(when, term=0, version=0, answers=0)
        else:
            one.contact.close(when)
    assert one.deadline() == expected


def test_one_that_is_silent_is_lost():
    one = heard(5.0)
    assert not one.check(14.9)
    assert one.check(15.0) is Loss.SILENT


def test_one_that_answers_nothing_is_lost_once_its_lease_is_over():
    one = heard(0.0, answered=0.0)
    for at in range(1, 30):
        # The agent continues to report, and hears nothing new.
        one.hear(float(at), term=0, version=0, answers=1)
        if loss := one.check(float(at)):
            break
        assert (one.state is PeerState.UNANSWERED) == (at >= 12), "a loss timeout and two beats"
    assert (at, loss) == (22, Loss.UNANSWERED)


def test_an_answer_in_time_is_as_good_as_ever():
    one = heard(0.0, answered=0.0)
    one.hear(12.0, term=0, version=0, answers=1)
    assert not one.check(12.0)
    assert one.state is PeerState.UNANSWERED
    one.answered.send(2, 12.5)
    one.hear(13.0, term=0, version=0, answers=2)
    assert one.state is PeerState.HEARD
    assert one.deadline() == 23.0


def test_one_that_is_expected_is_lost_after_the_loss_timeout():
    one = Presence(TIMING)
    one.expect(100.0)
    assert one.deadline() == 110.0
    assert one.check(110.0) is Loss.SILENT
    one = Presence(TIMING)
    one.expect(100.0)
    one.hear(100.5, term=0, version=0, answers=None)
    assert (one.state, one.deadline()) == (PeerState.HEARD, 110.5)


@pytest.mark.parametrize(("at", "until"), [(LEASE - 0.1, LEASE - 0.1), (LEASE, 2 * LEASE)])
def test_who_dies_within_its_vote_lease_follows_nobody_else(at, until):
    """Others that die may have followed another head just before, for a vote lease."""
    one = heard(0.0, answered=0.0)
    one.contact.close(at - 1.0)
    assert one.can_be_dead()
    one.die(at, Loss.EXITED)
    assert (one.state, one.loss) == (PeerState.DEAD, Loss.EXITED)
    assert one.vote_ends_at == until


def test_another_start_of_an_agent_that_died_has_no_vote_until_it_joins():
    one = heard(0.0, answered=0.0)
    assert one.has_configuration
    one.contact.close(0.5)
    one.die(1.0, Loss.EXITED)
    one.start_anew(excludes_last=True)
    one.hear(2.0, term=0, version=-1, answers=None)
    one.come_back()
    assert not one.has_configuration
    assert one.has_died  # it is the first start that is listed
    one.join(3.0)
    assert one.has_configuration
    assert not one.has_died
    assert one.lease_start == 3.0


@pytest.mark.parametrize(
    ("at", "followed", "excludes_last", "answers", "until"),
    [
        pytest.param(LEASE + 1, 1, True, 2, 2 * LEASE + 1, id="an answer"),
        pytest.param(LEASE - 1, 1, True, 2, LEASE - 1, id="within the vote lease to this head"),
        pytest.param(LEASE + 1, 1, False, 2, math.inf, id="both may live"),
        pytest.param(LEASE + 1, 1, True, 1, math.inf, id="a late report"),
        pytest.param(LEASE + 1, None, True, 2, math.inf, id="the last one never followed us"),
    ],
)
def test_an_answer_of_another_start_proves_that_the_last_one_is_dead(
    at, followed, excludes_last, answers, until
):
    one = Presence(TIMING)
    one.answered.send(1, 0.0)
    one.hear(0.1, term=0, version=0, answers=followed)
    one.give_up(0.1, Loss.SILENT)
    one.start_anew(excludes_last=excludes_last)
    one.answered.send(2, at)
    one.hear(at, term=0, version=-1, answers=answers)
    assert one.vote_ends_at == until


def test_one_that_was_heard_since_is_not_dead():
    one = heard(5.0)
    assert not one.can_be_dead()
    one.contact.close(6.0)
    assert one.can_be_dead()
    one.hear(6.5, term=0, version=0, answers=None)
    assert not one.can_be_dead()


@pytest.mark.parametrize("state", PeerState)
def test_from_every_state_an_agent_can_be_heard_and_can_die(state):
    assert TRANSITIONS[state] | {state} >= {PeerState.HEARD, PeerState.DEAD}


@pytest.mark.parametrize("state", [s for s in PeerState if s in GIVEN_UP], ids=str)
def test_who_was_given_up_stays_so_until_it_comes_back(state):
    one = heard(0.0, answered=0.0)
    one.contact.close(1.0)
    if state is PeerState.LOST:
        one.give_up(50.0, Loss.SILENT)
    else:
        one.die(50.0, Loss.EXITED)
    assert one.deadline() == math.inf
    one.hear(60.0, term=0, version=0, answers=1)
    assert one.state is state
    assert one.loss
    one.come_back()
    assert (one.state, one.loss) == (PeerState.HEARD, None)
