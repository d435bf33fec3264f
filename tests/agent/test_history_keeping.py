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


def keeping(index=0, logs=True):
    control = Control(Job(PLACES), index, 1, "10.0.0.1", "incarnation")
    allocation = Allocation("71.0", "identity", PLACES, index)
    log_directory = SimpleNamespace(path="logs") if logs else None
    config = SimpleNamespace(logs=log_directory, allocation=allocation, job=Job(PLACES))
    control.handle(events.Started(), time.monotonic())
    return HistoryKeeping(config, control, lambda: None)


def test_the_head_begins_with_whose_it_is_and_the_hosts(service):
    history = keeping()
    history.keep(service, time.monotonic(), (), None)
    assert service.lines == []  # no start waits for it
    now = history.next_deadline()
    history.keep(service, now, (), None)
    history.keep(service, now, (), None)  # nothing has changed
    title, moment = service.lines
    assert (title["launch"], title["index"], title["host"]) == ("71.0", 0, "n1")
    assert (moment["round"], moment["workers"]) == (-1, None)
    assert (moment["job"]["states"], moment["job"]["hosts"]) == ("PA", ["n1", "n2"])


def test_then_it_notes_a_moment_each_period(service):
    history = keeping()
    now = history.next_deadline()
    history.keep(service, now, (), None)
    service.lines.clear()
    for _ in range(3):
        due = history.next_deadline()
        assert due > now
        now = due
        history.keep(service, now, (), None)
    assert [moment["job"]["hosts"] for moment in service.lines] == [[], [], []]


def test_what_a_stalled_directory_does_not_take_comes_later(service):
    history = keeping()
    service.stalled = True
    history.keep(service, history.next_deadline(), (), None)
    service.stalled = False
    history.keep(service, history.next_deadline(), (), None)
    title, moment = service.lines
    assert title["launch"] == "71.0"
    assert moment["job"]["hosts"] == ["n1", "n2"]


def test_changes_are_bounded(service, monkeypatch):
    monkeypatch.setattr(history_keeping, "MOST_CHANGES", 2)
    history = keeping()
    now = history.next_deadline()
    history.keep(service, now, (), None)
    service.lines.clear()
    for changes in range(1, 9):
        history.note(SeatUse(0, {Category.SPARE: changes}))
        history.keep(service, now + changes / 10, (), None)
    assert len(service.lines) == 2


def test_an_agent_without_workers_that_does_not_lead_notes_nothing(service):
    history = keeping(index=1)
    history.keep(service, time.monotonic(), (), None)
    history.keep(service, history.next_deadline(), (), None)
    assert service.lines == []


def test_without_logs_there_is_none(service):
    history = keeping(logs=False)
    assert history.next_deadline() == float("inf")
    history.keep(service, time.monotonic() + 100, (), None)
    assert service.lines == []
