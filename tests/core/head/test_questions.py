"""Answers to questions: one that is late, because it answers an earlier question, changes nothing.
How late answers of Slurm's are used all the same is in test_notices.py.
"""

from __future__ import annotations

import pytest
from story import a_job, feed, report

from hpclaunch.core.control import Control
from hpclaunch.core.head.head import Head
from hpclaunch.core.member.member import AgentStart
from hpclaunch.core.protocol.effects import ChooseCheckpoint, Diagnose, Probe, Record, Send
from hpclaunch.core.protocol.events import (
    AgentGone,
    CheckpointChosen,
    Diagnosed,
    PeerClosed,
    SearchFailed,
    Started,
    StoreListening,
    Tick,
)
from hpclaunch.core.protocol.facts import NodeLost, RoundBegan
from hpclaunch.core.protocol.messages import Order
from hpclaunch.core.protocol.model import Origin, Phase, Seen, Trouble, WorkerExit
from hpclaunch.core.protocol.stages import Stage

IDLE, RUNNING = Phase.IDLE, Phase.RUNNING


def ask(core, now, event, kind):
    """Return the number of the question of this kind that the core asks on an event."""
    (asked,) = [e for e in core.handle(event, now) if isinstance(e, kind)]
    return asked.number


def looks(effects):
    messages = [e.message for e in effects if isinstance(e, Send)]
    return [m.look for m in messages if isinstance(m, Order) and m.look is not None]


def test_the_answer_to_the_search_for_one_round_does_not_choose_for_the_next():
    head = Head(a_job(saves=True, loss=100.0, beat=100.0))
    feed(head, 0.0, Started(), report(0, IDLE))
    earlier = ask(head, 0.0, report(1, IDLE), ChooseCheckpoint)
    head.handle(CheckpointChosen("", number=earlier), 0.0)
    feed(head, 0.1, report(0, RUNNING, 0), report(1, RUNNING, 0))
    failure = (WorkerExit(0, 1, 0, 0.0, stopped=False, tail="no"),)
    feed(head, 1.0, report(0, RUNNING, 0, exits=failure), report(1, IDLE, 0))
    for_next = ask(head, 1.1, report(0, IDLE, 0, exits=failure), ChooseCheckpoint)
    assert head.stage is Stage.CHOOSING
    assert looks(head.handle(CheckpointChosen("/c/1.pt", number=earlier), 1.2)) == []
    looked = looks(head.handle(CheckpointChosen("/c/2.pt", age=5.0, number=for_next), 1.3))
    assert {look.path for look in looked} == {"/c/2.pt"}
    head.handle(CheckpointChosen("/c/1.pt", age=9.0, number=earlier), 1.4)
    seen = Seen(looked[0].number, looked[0].mark)
    head.handle(report(0, IDLE, 0, exits=failure, seen=seen), 1.5)
    effects = head.handle(report(1, IDLE, 0, seen=seen), 1.8)
    (began,) = [e.fact for e in effects if isinstance(e, Record) and isinstance(e.fact, RoundBegan)]
    assert began.checkpoint == "/c/2.pt"
    assert began.age == pytest.approx(5.5)


def test_an_earlier_search_that_fails_does_not_end_the_job():
    job = a_job("n0", saves=True)
    control = Control(AgentStart(job, 0, 1, "127.0.0.1", "a0"))
    feed(control, 0.0, Started())
    number = ask(control, 0.1, StoreListening(4000), ChooseCheckpoint)
    trouble = Trouble(Origin.TROUBLE, "cannot look for checkpoints")
    assert control.handle(SearchFailed(trouble, number - 1), 0.2) == []
    assert control.head.stage is Stage.CHOOSING
    control.handle(SearchFailed(trouble, number), 0.3)
    assert control.exited


def test_an_agent_that_has_looked_at_an_earlier_checkpoint_has_not_seen_this_one():
    head = Head(a_job(saves=True, loss=100.0, beat=100.0))
    feed(head, 0.0, Started(), report(0, IDLE))
    number = ask(head, 0.1, report(1, IDLE), ChooseCheckpoint)
    look, _ = looks(head.handle(CheckpointChosen("/c/1.pt", number=number), 0.2))
    # The second one is of an earlier start of this head, which has counted from 1 as well.
    for number, mark in ((look.number - 1, look.mark), (look.number, "of another")):
        for agent in (0, 1):
            head.handle(report(agent, IDLE, seen=Seen(number, mark)), 0.3)
        assert head.stage is Stage.CHOOSING
    for agent in (0, 1):
        head.handle(report(agent, IDLE, seen=Seen(look.number, look.mark)), 0.4)
    assert head.stage is Stage.RUNNING


def test_only_the_answer_to_the_last_diagnosis_is_recorded():
    head = Head(a_job("n0 n1 n2"))
    feed(head, 0.0, Started(), report(0, IDLE))
    first = ask(head, 10.0, Tick(), Diagnose)
    second = ask(head, 70.0, Tick(), Diagnose)
    assert head.handle(Diagnosed("it was so before", first), 70.1) == []
    assert head.handle(Diagnosed("it is so", second), 70.2) != []


def test_an_agent_that_was_started_again_is_not_dead_by_a_proof_of_before():
    control = Control(AgentStart(a_job("n0 n1 n2", fewest=1, loss=100.0), 0, 1, "10.0.0.1", "a0"))
    feed(control, 0.0, Started(), report(1, IDLE))
    first = ask(control, 1.0, PeerClosed(1), Probe)
    control.handle(AgentGone(1, first), 1.1)
    control.handle(report(1, IDLE, incarnation="b1"), 1.2)
    second = ask(control, 1.3, PeerClosed(1), Probe)
    assert control.handle(AgentGone(1, first), 1.4) == []
    recorded = [e.fact for e in control.handle(AgentGone(1, second), 1.5) if isinstance(e, Record)]
    assert NodeLost in map(type, recorded)


def test_the_numbers_of_two_heads_are_different():
    """An agent may lead again, or answer what an earlier head has asked."""
    job = a_job(saves=True)
    numbers = {next(Head(job, me=term % 2, term=term).state.numbers) for term in range(4)}
    assert len(numbers) == 4
