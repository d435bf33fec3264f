"""The loop with test adapters and a real core."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest

from hpclaunch.agent import loop
from hpclaunch.agent.adapter import Adapter
from hpclaunch.agent.loop import Loop
from hpclaunch.core.control import Control
from hpclaunch.core.member.member import AgentStart
from hpclaunch.core.protocol import effects, events
from hpclaunch.core.protocol.model import EXIT_USAGE, Job, Origin, Place, Trouble
from hpclaunch.system.logs.journal import Journal

ALL = set(effects.Effect.__args__) - {effects.Exit}
TROUBLE = events.TroubleFound(Trouble(Origin.USAGE, "no way"))
QUIET = 0.2  # seconds


class World(Adapter):
    """An adapter that performs effects of these kinds by appending them to `performed`."""

    def __init__(self, kinds=ALL):
        self.kinds, self.performed = kinds, []

    def performs(self):
        return dict.fromkeys(self.kinds, self.performed.append)


class Pipe(Adapter):
    """An adapter that is readable from the start, and then reports trouble."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        os.write(self.writer, b".")
        self.after = None

    def fds(self):
        return [self.reader]

    def ready(self, fds, now):
        if self.reader in fds:
            os.read(self.reader, 1)
            yield TROUBLE
            self.after = list(self.world.performed)

    def close(self):
        os.close(self.reader)
        os.close(self.writer)


class Clock(Adapter):
    """An adapter that reports trouble at its deadline."""

    def __init__(self):
        self.at = time.monotonic() + QUIET

    def deadline(self):
        return self.at

    def update(self, now):
        return [TROUBLE] if now >= self.at else []


class ClientOfHelper(Clock):
    """An adapter that gives up its helper at the deadline."""

    limits_helper = True

    def update(self, now):
        assert now < self.at, "the helper could not answer in time"
        return []


class ClosingAdapter(Adapter):
    def __init__(self, name, order, fails=False):
        self.name, self.order, self.fails = name, order, fails

    def close(self):
        self.order.append(self.name)
        if self.fails:
            raise OSError(self.name)


def looping(*adapters):
    control = Control(AgentStart(Job((Place(0, 0, "n0"),)), 0, 1, "127.0.0.1", "a0"))
    return Loop(control, Journal(None, "0"), adapters)


def test_an_effect_without_an_adapter_is_an_error_at_the_start():
    with pytest.raises(TypeError, match="no adapter performs Record"):
        looping(World(ALL - {effects.Record}))


def test_an_effect_with_two_adapters_is_an_error_at_the_start():
    with pytest.raises(TypeError, match="Record is performed twice"):
        looping(World(), World({effects.Record}))


def test_an_event_is_handled_before_its_adapter_continues():
    pipe, world = Pipe(), World()
    pipe.world = world
    each = looping(world, pipe)
    end = each.run([events.Started()])
    assert end.verdict.reason.endswith("no way")
    assert pipe.after == world.performed != []
    each.close([])


class Opening(Clock):
    """An adapter that opens a pipe in which nothing arrives, once `before` has closed its own."""

    def __init__(self, before):
        super().__init__()
        self.before, self.given = before, []

    def ready(self, fds, now):
        if self.before.after is not None and not self.given:
            number = self.before.reader
            self.before.close()
            self.reader, self.writer = os.pipe()
            assert self.reader == number
            self.given.append(self.reader in fds)


class Readable(Pipe):
    def ready(self, fds, now):
        if self.reader in fds:
            self.after = ()
        return ()

    def fds(self):
        return [] if self.after is not None else [self.reader]


def test_a_number_that_is_used_again_in_the_same_turn_is_not_ready():
    pipe = Readable()
    opening = Opening(pipe)
    looping(World(), pipe, opening).run([events.Started()])
    assert opening.given == [False]
    os.close(opening.reader)
    os.close(opening.writer)


def test_the_loop_wakes_at_the_earliest_deadline():
    clock = Clock()
    end = looping(World(), Adapter(), clock).run([events.Started()])
    assert end.verdict.code == EXIT_USAGE
    assert time.monotonic() >= clock.at


def test_helpers_get_more_time_after_a_suspension(monkeypatch):
    """Only deadlines for helpers, which were suspended too, are extended."""
    helped, clock = ClientOfHelper(), Clock()
    clock.at += QUIET
    monkeypatch.setattr(loop, "LATE", 0.0)
    assert looping(World(), helped, clock).run([events.Started()]).verdict.code == EXIT_USAGE


class Overdue(Adapter):
    """An adapter that is to act at once, since it should have long ago."""

    at = -math.inf

    def deadline(self):
        return self.at

    def update(self, now):
        self.at = math.inf


class Limited(Adapter):
    limits_helper, is_updated = True, False

    def update(self, now):
        self.is_updated = True


def test_a_deadline_in_the_past_is_no_suspension(monkeypatch):
    helped = Limited()
    monkeypatch.setattr(loop, "LATE", 60.0)  # however busy the machine is
    looping(World(), Overdue(), helped, Clock()).run([events.Started()])
    assert helped.is_updated


def test_adapters_are_closed_in_reverse_order_except_for_some_even_if_one_fails():
    order: list[str] = []
    first, second, third, fourth = (ClosingAdapter(n, order, fails=n == "3") for n in "1234")
    with pytest.raises(OSError, match="3"):
        looping(World(), first, second, third, fourth).close([fourth, third])
    assert order == ["2", "1", "4", "3"]


def test_the_loop_knows_no_particular_adapter():
    """The loop imports only the class Adapter from the agent."""
    text = Path(loop.__file__).read_text()
    assert [line for line in text.splitlines() if line.startswith("from .")] == [
        "from ..core.consensus.awake_clock import LATE",
        "from ..core.control import Control",
        "from ..core.protocol.effects import Effect, Exit",
        "from ..core.protocol.events import Event, Tick",
        "from ..system.logs.journal import Journal",
        "from .adapter import Adapter, Fd, Performs",
    ]
