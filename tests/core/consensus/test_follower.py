"""Stories of one agent that has lost its head: its word, whom it asks, and what it answers."""

from __future__ import annotations

import pytest
from story import a_job, a_member, an_order, deeds, feed, idle, report, reports, run, stop, wait

from hpclaunch.core.control import Control
from hpclaunch.core.member.member import AgentStart
from hpclaunch.core.protocol.configuration import NOBODY
from hpclaunch.core.protocol.effects import Dial, Probe, Record, Send, StopWorkers
from hpclaunch.core.protocol.events import (
    AgentGone,
    HeadClosed,
    HeadReached,
    Received,
    Started,
    StoreListening,
    Tick,
)
from hpclaunch.core.protocol.facts import HeadHeard, HeadSilent
from hpclaunch.core.protocol.messages import Hint
from hpclaunch.core.protocol.model import Goal, Phase


def of_n2(goal=Goal.WAIT, **fields):
    return an_order(goal, sender=2, term=2, **fields)


def test_whose_head_lives_follows_no_other():
    member = idle(hosts="n0 n1 n2", loss=10.0)  # a vote lease of 13 s
    assert feed(member, 0.5, of_n2(Goal.RUN)) == []
    assert deeds(feed(member, 12.9, of_n2(Goal.RUN))) == []
    assert member.follower.head == 0
    feed(member, 13.0, Tick(), of_n2())
    assert (member.follower.head, member.follower.seeking) == (2, NOBODY)


def test_a_silent_head_is_heard_again_only_if_it_is_the_same():
    def member():
        member = idle(hosts="n0 n1 n2", loss=10.0, silence_notice=10.0)  # a vote lease of 13 s
        assert recorded(feed(member, 11.0, Tick())) == [HeadSilent]
        return member

    assert recorded(feed(member(), 12.0, wait(0))) == [HeadHeard]
    assert recorded(feed(member(), 14.0, of_n2())) == []


def recorded(effects):
    return [type(effect.fact) for effect in effects if isinstance(effect, Record)]


def test_a_head_that_leads_no_more_gives_its_followers_their_word_back():
    member = idle(hosts="n0 n1 n2", loss=10.0)
    assert feed(member, 0.4, Received(0, Hint(0, led=True)), Received(1, Hint(2, led=True))) == []
    effects = feed(member, 0.5, Received(0, Hint(2, led=True)))
    assert reports(effects)[-1].seeking == 2
    feed(member, 0.6, of_n2())
    assert (member.follower.head, member.follower.seeking) == (2, NOBODY)


def test_what_was_found_out_without_a_head_is_forgotten_with_it():
    """The head was only cut off; who was not there then may have come since."""
    member = idle(hosts="n0 n1 n2 n3", loss=10.0)
    feed(member, 13.5, Tick(), AgentGone(2))
    assert member.follower.dead.keys() == {2}
    feed(member, 13.6, wait(0))
    assert not member.follower.dead


def test_one_that_came_after_it_was_asked_about_is_not_dead():
    """The last one in its place had died; the answers come when there is a head again."""
    member = a_member(hosts="n0 n1 n2", loss=10.0)
    feed(member, 0.0, Started())
    feed(member, 12.0, Tick())  # it looks around for another head
    feed(member, 12.1, wait(0), AgentGone(2))
    feed(member, 13.0, HeadClosed(0), AgentGone(0))
    assert member.follower.dead.keys() == {0}


def test_a_head_that_leads_again_is_heard_from_its_first_order_on():
    """A head that leads again counts from 1 again, and leads another world."""
    member = idle(hosts="n0 n1 n2", loss=10.0)
    feed(member, 0.5, run(0))
    effects = feed(member, 0.6, an_order(Goal.WAIT, 2, serial=1, term=3))
    assert StopWorkers() in effects
    assert member.follower.term == 3


def test_a_head_that_takes_a_later_term_has_the_same_world():
    """A head raises its term if another agent has tried to lead and would ignore it otherwise."""
    member = idle(hosts="n0 n1 n2", loss=10.0)
    feed(member, 0.5, run(0))
    effects = feed(member, 0.6, an_order(Goal.RUN, 0, term=3, tenure=0))
    assert StopWorkers() not in effects
    assert (member.phase, member.follower.term) == (Phase.RUNNING, 3)
    assert feed(member, 0.7, stop(0)) == []


def test_an_order_of_an_old_term_is_ignored():
    member = idle(hosts="n0 n1 n2", loss=10.0)
    feed(member, 13.0, Tick(), of_n2())
    assert feed(member, 13.1, stop(5)) == []
    feed(member, 40.0, Tick())  # the second head is lost as well
    feed(member, 40.1, wait())
    assert (member.follower.head, member.follower.term) == (2, 2)


@pytest.mark.parametrize(("sender", "term"), [(2, 0), (2, 1), (0, 1), (0, 2)])
def test_nobody_leads_in_the_term_of_another(sender, term):
    member = a_member("n0 n1 n2")
    feed(member, 0.0, Started(), StoreListening(4001))
    feed(member, 0.1, an_order(Goal.WAIT, sender=sender, term=term))
    assert not member.follower.link.was_heard


def test_who_follows_another_head_leaves_the_round_of_the_old_one():
    member = idle(hosts="n0 n1 n2", loss=10.0)
    feed(member, 0.5, run(0))
    assert member.phase is Phase.RUNNING
    assert StopWorkers() in feed(member, 13.5, Tick(), of_n2())


def test_a_dead_candidate_is_passed_over():
    member = idle(hosts="n0 n1 n2 n3")
    feed(member, 1.0, HeadClosed(0))
    assert reports(feed(member, 1.1, AgentGone(0)))[-1].seeking == 1
    assert reports(feed(member, 2.1, Tick()))[-1].seeking == 2  # its patience is over
    effects = feed(member, 2.2, AgentGone(2))
    assert reports(effects)[-1].seeking == 3
    assert {Dial((0, 3), ("", "")), Probe(3)} <= set(deeds(effects))


def test_whose_head_is_heard_again_asks_nobody_any_more():
    member = idle(hosts="n0 n1 n2", loss=10.0)
    assert reports(feed(member, 13.0, Tick()))[-1].seeking == 1
    effects = feed(member, 13.1, HeadReached(0), wait())
    assert reports(effects)[-1].seeking == NOBODY


def test_a_late_order_of_a_dead_head():
    """A late order does not delay the agent, and the next head is dialled all the same."""
    member = idle(hosts="n0 n0 n2")
    feed(member, 1.0, HeadClosed(0))
    assert Dial((0, 2), ("", "")) in feed(member, 1.1, AgentGone(0))
    assert Dial((0,), ("",)) in feed(member, 1.2, wait())
    assert member.next_deadline() <= 1.2
    assert Dial((2,), ("",)) in feed(member, 1.2, an_order(Goal.WAIT, sender=2, term=1))


def test_a_late_order_of_a_candidate_that_has_died():
    """The candidate sent the order and was killed; its host reported that before the order came."""
    member = idle(hosts="n0 n1 n2 n3")
    feed(member, 1.0, HeadClosed(0), AgentGone(0))
    feed(member, 1.1, AgentGone(2))
    effects = feed(member, 1.2, of_n2())
    assert (member.follower.head, member.follower.seeking) == (2, NOBODY)
    assert Probe(2) in effects
    assert reports(feed(member, 1.3, AgentGone(2)))[-1].seeking == 3


def without_head(hosts="n0 n1 n2 n3"):
    """The second agent, which asks itself to lead."""
    control = Control(AgentStart(a_job(hosts), 1, 2, "10.0.0.2", "a1"))
    feed(control, 0.0, Started(), StoreListening(4001), HeadReached(0), wait())
    feed(control, 1.0, HeadClosed(0), AgentGone(0))
    assert control.member.follower.seeking == 1
    return control


def asks(agent, term, **fields):
    return report(agent, Phase.IDLE, term=0, seeking=term, version=-1, heard=1, **fields)


def hints(effects):
    return {e.to: e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Hint)}


def test_who_has_a_head_says_so_when_it_is_asked():
    control = Control(AgentStart(a_job("n0 n1 n2"), 1, 2, "10.0.0.2", "a1"))
    feed(control, 0.0, Started(), StoreListening(4001), HeadReached(0), wait())
    assert hints(feed(control, 1.0, asks(2, 1))) == {2: Hint(0, led=True)}


def test_who_is_further_says_so_and_who_is_behind_catches_up():
    control = without_head()
    feed(control, 2.1, Tick())
    assert control.member.follower.seeking == 2
    assert hints(feed(control, 2.2, asks(3, 1))) == {3: Hint(2, led=False)}
    assert hints(feed(control, 2.3, asks(3, 5))) == {}
    assert control.member.follower.seeking == 5


@pytest.mark.parametrize(
    ("hint", "seeking"),
    [
        (Hint(6, led=False), 6),
        (Hint(7, led=True), 7),
        (Hint(1, led=True), 1),  # that would be itself
        (Hint(4, led=True), 1),  # and that the head that was lost
        (Hint(0, led=False), 1),
    ],
)
def test_what_a_hint_does(hint, seeking):
    control = without_head()
    feed(control, 1.5, Received(2, hint))
    assert control.member.follower.seeking == seeking


def test_a_hint_to_one_that_has_a_head_changes_nothing():
    member = idle(hosts="n0 n1 n2")
    assert feed(member, 0.5, Received(2, Hint(2, led=True))) == []
