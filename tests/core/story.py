"""Short words for scripted histories of the core: jobs, messages, and a way to feed them in.

The constructors fill in what a story does not care about. Serial numbers grow by themselves, so
that a story's messages are each newer than the last unless it says otherwise.
"""

from __future__ import annotations

import itertools
import math
import signal
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from hpclaunch.core.head.head import Head
from hpclaunch.core.member.member import AgentStart, Member
from hpclaunch.core.protocol.effects import (
    AskForEnd,
    ChooseCheckpoint,
    Diagnose,
    Effect,
    FlushStage,
    LookAt,
    Probe,
    Record,
    Send,
)
from hpclaunch.core.protocol.events import (
    AgentGone,
    CheckpointChosen,
    CheckpointSeen,
    Diagnosed,
    EndFound,
    Event,
    HeadReached,
    Received,
    SearchFailed,
    Signalled,
    StageFlushed,
    Started,
    StoreListening,
    WorkersSeen,
)
from hpclaunch.core.protocol.messages import Message, Order, Report
from hpclaunch.core.protocol.model import (
    NO_RANK,
    Assignment,
    Culprit,
    Goal,
    Job,
    Look,
    Origin,
    Phase,
    Place,
    Seen,
    Verdict,
    WorkerExit,
)
from hpclaunch.core.protocol.timing import Timing
from hpclaunch.core.protocol.values import fields, replace
from hpclaunch.observe.console import Console

TIMES = {field.name for field in fields(Timing)}
EVERYTHING = 10**6  # a serial number or an version that no story comes to

_serials = itertools.count(1)


def a_job(hosts: str = "n0 n1", **settings: Any) -> Job:
    """Return a job with one agent for each word; the same word twice is two agents on one node."""
    names = hosts.split()
    nodes = list(dict.fromkeys(names))
    places = tuple(Place(i, nodes.index(name), name) for i, name in enumerate(names))
    times = {name: settings.pop(name) for name in [*settings] if name in TIMES}
    # Stories let time pass without a beat, and only a few are of silence.
    return Job(
        places, timing=Timing(**{"silence_notice": math.inf, "quiet": 0.0, **times}), **settings
    )


def a_part(number: int = 0, **fields: Any) -> Assignment:
    """Return the second node's part in a round of two nodes with two workers each."""
    defaults: dict[str, Any] = {
        "round": number,
        "restarts": number,
        "first_rank": 2,
        "nproc": 2,
        "world_size": 4,
        "first_local_rank": 0,
        "local_world_size": 2,
        "group_rank": 1,
        "group_world_size": 2,
        "layout": "2(x2)",
        "address": "10.0.0.2",
        "store_address": "10.0.0.1",
        "store_port": 4000,
        "hosts_store": False,
        "checkpoint": "",
    }
    return Assignment(**defaults | fields)


def run(number: int = 0, **fields: Any) -> Received:
    """Return the head's order to run the round `number`."""
    return an_order(Goal.RUN, number, **{"assignment": a_part(number)} | fields)


def seen(still: float = 0.0, steps: tuple[int, ...] = (100, 100), **fields: Any) -> WorkersSeen:
    """Return an event: two training workers have been inactive for so long."""
    defaults = dict.fromkeys(("busy", "meets", "patient", "traced"), False)
    return WorkersSeen(steps, still, **{"gap": 0.0, "trains": True, **defaults, **fields})


def stop(number: int = 0, **fields: Any) -> Received:
    return an_order(Goal.STOP, number, **fields)


def wait(number: int = 0, **fields: Any) -> Received:
    return an_order(Goal.WAIT, number, **fields)


def end(code: int = 0, reason: str = "all workers ended with 0", **fields: Any) -> Received:
    return an_order(Goal.END, verdict=Verdict(code, reason, Origin.TROUBLE), **fields)


def an_order(
    goal: Goal, number: int = 0, *, serial: int = 0, sender: int = 0, term: int = 0, **fields: Any
) -> Received:
    """Return an order from the head of the first term, unless the fields differ."""
    fields = {"incarnation": "a1", "tenure": term, **fields}
    order = Order(term, serial or next(_serials), goal=goal, round=number, **fields)
    return Received(sender, order, f"10.0.0.{sender + 1}")


def report(index: int, phase: Phase, number: int = -1, **fields: Any) -> Received:
    """Return the report of an agent with two workers that has heard all orders of the head."""
    defaults: dict[str, Any] = {
        "host": f"n{index}",
        "incarnation": f"a{index}",
        "serial": next(_serials),
        "nproc": 2,
        "address": f"10.0.0.{index + 1}",
        "head_address": "10.0.0.1" if index else "",
        "store_port": 4000 + index,
        "round": number,
        "phase": phase,
        "exits": (),
        "stop_signal": 0,
        "trouble": None,
        "heard": EVERYTHING,
        "version": EVERYTHING,
        "port": 7000 + index,
    }
    return Received(index, Report(**defaults | fields), f"10.0.0.{index + 1}")


def failed(rank: int, code: int = 1, signum: int = 0, age: float = 0.0) -> WorkerExit:
    return WorkerExit(rank, code, signum, age, stopped=False, tail=f"rank {rank} is no more")


def store_ended(age: float = 0.0) -> WorkerExit:
    return WorkerExit(NO_RANK, 137, 9, age, stopped=False, tail="", culprit=Culprit.STORE)


def killed_with_server(rank: int, age: float = 0.0) -> WorkerExit:
    return WorkerExit(rank, 137, 9, age, stopped=False, tail="", culprit=Culprit.FORK_SERVER)


class Core(Protocol):
    def handle(self, event: Event, now: float) -> list[Effect]: ...

    def next_deadline(self) -> float: ...


class Questions:
    """The numbers of the questions that a core has asked last, for stories that give none."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[type, int], int] = {}

    def note(self, effect: Effect) -> None:
        match effect:
            case Probe(agent=agent, number=number):
                self._numbers[AgentGone, agent] = number
            case ChooseCheckpoint(number=number):
                self._numbers[CheckpointChosen, 0] = self._numbers[SearchFailed, 0] = number
            case Diagnose(number=number):
                self._numbers[Diagnosed, 0] = number
            case AskForEnd(number=number):
                self._numbers[EndFound, 0] = number
            case FlushStage(number=number):
                self._numbers[StageFlushed, 0] = number

    def numbered(self, event: Event) -> Event:
        """Return the event; if it is an answer without a number, as one to the last question."""
        match event:
            case AgentGone(index=index, number=0):
                return replace(event, number=self._numbers.get((AgentGone, index), 0))
            case CheckpointChosen() | SearchFailed() | Diagnosed() | EndFound() | StageFlushed():
                number = event.number or self._numbers.get((type(event), 0), 0)
                return replace(event, number=number)
        return event


_questions: WeakKeyDictionary[Core, Questions] = WeakKeyDictionary()


def without_number(effect: Effect) -> Effect:
    asks = isinstance(effect, Probe | ChooseCheckpoint | Diagnose | AskForEnd)
    return replace(effect, number=0) if asks else effect


def feed(core: Core, now: float, *events: Event) -> list[Effect]:
    """Return the effects of these events, which all happen at once. Every agent sees the checkpoint
    that it is asked to look at; for another story, use `core.handle`. An answer without a number
    is one to the last question, and questions are returned without their numbers."""
    effects: list[Effect] = []
    todo = deque(events)
    questions = _questions.setdefault(core, Questions())
    while todo:
        for asked in core.handle(questions.numbered(todo.popleft()), now):
            questions.note(asked)
            effect = without_number(asked)
            if isinstance(effect, LookAt) and effect.look is None:
                continue
            if isinstance(effect, LookAt):
                todo.append(CheckpointSeen(Seen(effect.look.number)))
            elif isinstance(effect, Send) and isinstance(core, Head) and _look(effect.message):
                todo.append(_sees(core, effect))
            else:
                effects.append(effect)
    return effects


def _look(message: Message) -> Look | None:
    return message.look if isinstance(message, Order) else None


def _sees(head: Head, order: Send) -> Received:
    look, known = _look(order.message), head.state.roster[order.to].report
    assert look is not None, "it is asked to look"
    assert known is not None, "it was heard"
    return Received(
        order.to,
        replace(known, serial=next(_serials), seen=Seen(look.number, look.mark, look.share)),
    )


def orders(effects: list[Effect]) -> list[tuple[int, str, int]]:
    """(agent, goal, round) of the orders among some effects."""
    sent = [(e.to, e.message) for e in effects if isinstance(e, Send)]
    return [(to, m.goal.value, m.round) for to, m in sent if isinstance(m, Order)]


def reports(effects: list[Effect]) -> list[Report]:
    sent = [e.message for e in effects if isinstance(e, Send)]
    return [m for m in sent if isinstance(m, Report)]


@dataclass(frozen=True)
class Say:
    """A line that the user reads of a fact."""

    text: str


def deeds(effects: list[Effect]) -> list[Effect | Say]:
    """Return the effects that are not messages, and instead of each fact its words."""
    found: list[Effect | Say] = []
    for effect in effects:
        if isinstance(effect, Record):
            found += map(Say, Console().lines(effect.fact))
        elif not isinstance(effect, Send):
            found.append(effect)
    return found


def said(effects: list[Effect]) -> list[str]:
    """Return what the user reads of them."""
    return [effect.text for effect in deeds(effects) if isinstance(effect, Say)]


# One agent that is not the head

TERM = Signalled(signal.SIGTERM)


def a_member(hosts: str = "n0 n1", **settings: Any) -> Member:
    settings = {"grace": 20.0, "loss": 100.0, "unkillable": 30.0, "wait": 0.0} | settings
    settings = {"beat": 1.0} | settings
    index = settings.pop("index", 1)
    return Member(
        AgentStart(a_job(hosts, **settings), index, 2, f"10.0.0.{index + 1}", f"a{index}")
    )


def idle(**settings: Any) -> Member:
    """Return a member that has met the head and is ready."""
    member = a_member(**settings)
    feed(member, 0.0, Started(), StoreListening(4001), HeadReached(0), wait())
    return member


def running(**settings: Any) -> Member:
    member = idle(**settings)
    feed(member, 1.0, run(0))
    return member
