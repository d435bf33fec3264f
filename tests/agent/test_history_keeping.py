"""When an agent notes a moment, and what is lost if its log directory stalls."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest

from hpclaunch.agent import history_keeping
from hpclaunch.agent.history_keeping import HistoryKeeping
from hpclaunch.core.control import Control
from hpclaunch.core.protocol import events
from hpclaunch.core.protocol.facts import Category, SeatUse
from hpclaunch.core.protocol.model import Allocation, Job, Place

PLACES = (Place(0, 0, "n1"), Place(1, 1, "n2"))


class Service:
    """Takes lines, unless it has `stalled`."""

    def __init__(self):
        self.lines, self.stalled = [], False

    def append(self, directory, name, text):
        if not self.stalled:
            self.lines += map(json.loads, text.splitlines())
        return not self.stalled


@pytest.fixture
def service():
    return Service()


def keeping(service, index=0, logs=True):
    control = Control(Job(PLACES), index, 1, "10.0.0.1", "incarnation")
    allocation = Allocation("71.0", "identity", PLACES, index)
    log_directory = SimpleNamespace(path="logs") if logs else None
    config = SimpleNamespace(logs=log_directory, allocation=allocation, job=Job(PLACES))
    control.handle(events.Started(), time.monotonic())
    seen = SimpleNamespace(use=(), newest=None)  # nobody has workers to ask
    return HistoryKeeping(config, control, SimpleNamespace(service=service), seen, seen, seen)


def test_the_head_begins_with_whose_it_is_and_the_hosts(service):
    history = keeping(service)
    history.update(time.monotonic())
    assert service.lines == []  # no start waits for it
    now = history.deadline()
    history.update(now)
    history.update(now)  # nothing has changed
    title, moment = service.lines
    assert (title["launch"], title["index"], title["host"]) == ("71.0", 0, "n1")
    assert (moment["round"], moment["workers"]) == (-1, None)
    assert (moment["job"]["states"], moment["job"]["hosts"]) == ("PA", ["n1", "n2"])


def test_then_it_notes_a_moment_each_period(service):
    history = keeping(service)
    now = history.deadline()
    history.update(now)
    service.lines.clear()
    for _ in range(3):
        due = history.deadline()
        assert due > now
        now = due
        history.update(now)
    assert [moment["job"]["hosts"] for moment in service.lines] == [[], [], []]


def test_what_a_stalled_directory_does_not_take_comes_later(service):
    history = keeping(service)
    service.stalled = True
    history.update(history.deadline())
    service.stalled = False
    history.update(history.deadline())
    title, moment = service.lines
    assert title["launch"] == "71.0"
    assert moment["job"]["hosts"] == ["n1", "n2"]


def test_changes_are_bounded(service, monkeypatch):
    monkeypatch.setattr(history_keeping, "MOST_CHANGES", 2)
    history = keeping(service)
    now = history.deadline()
    history.update(now)
    service.lines.clear()
    for changes in range(1, 9):
        history.note(SeatUse(0, {Category.SPARE: changes}), 0.0)
        history.update(now + changes / 10)
    assert len(service.lines) == 2


def test_an_agent_without_workers_that_does_not_lead_notes_nothing(service):
    history = keeping(service, index=1)
    history.update(time.monotonic())
    history.update(history.deadline())
    assert service.lines == []


def test_without_logs_there_is_none(service):
    history = keeping(service, logs=False)
    assert history.deadline() == float("inf")
    history.update(time.monotonic() + 100)
    assert service.lines == []
