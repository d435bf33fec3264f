"""The moments that an agent records, and those that are lost if its log directory stalls."""

from __future__ import annotations

import json
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from hpclaunch.agent.history_keeping import HistoryKeeping
from hpclaunch.core.member.moments import WorkersMoment
from hpclaunch.core.protocol.model import Allocation, Job, Phase, Place, RankVitals
from hpclaunch.system.shared.steady_date import SteadyDate

PLACES = (Place(0, 0, "n1"), Place(1, 1, "n2"))


class Service:
    """A log service that accepts lines unless it has `stalled`."""

    def __init__(self):
        self.lines, self.stalled, self.unwritten = [], False, Counter()
        self.names = set()

    def append(self, directory, name, text):
        self.names.add(name)
        if not self.stalled:
            self.lines += map(json.loads, text.splitlines())
        return not self.stalled


@pytest.fixture
def service():
    return Service()


class Member:
    """A member with workers in a phase of a round."""

    index = leads = 0

    def __init__(self):
        self.member = SimpleNamespace(round=0, phase=Phase.RUNNING)

    def workers_moment(self, now, vitals=(), gpus=()):
        memory = sum(each.memory for each in vitals)
        return WorkersMoment(0, 2, 1.0, (0,) * 7, 0, 0.0, memory=memory)


@pytest.fixture
def agent():
    return Member()


def keeping(service, agent, *, logs=True, asked=None):
    """Return the history of an agent; `asked` receives the callback of each request for vitals."""
    allocation = Allocation("71.0", "identity", PLACES, 0)
    directory = "logs" if logs else None
    config = SimpleNamespace(directory=directory, allocation=allocation, job=Job(PLACES))
    fork_server = SimpleNamespace(ask_vitals=[].append if asked is None else asked.append)
    health = SimpleNamespace(use=(), ask_use=lambda: None)
    written = SimpleNamespace(service=service)
    context = SimpleNamespace(config=config, date=SteadyDate(), logs=written)
    return HistoryKeeping(context, agent, fork_server, health, None)


def test_workers_are_asked_each_period_and_their_answers_are_recorded(service, agent):
    asked, now = [], time.monotonic()
    history = keeping(service, agent, asked=asked)
    history.update(now)  # nothing is due yet
    assert len(service.lines) == 2  # the title, and the start of the round
    assert not asked
    history.update(history.deadline())
    (take,) = asked
    take([RankVitals(0, "step", 7, 7, 1.0, 100)])
    history.update(history.deadline())
    title, *_, moment = service.lines
    assert (title["launch"], title["index"], title["host"]) == ("71.0", 0, "n1")
    assert moment["workers"]["memory"] == 100


def test_the_start_and_the_end_of_a_round_are_recorded_at_once(service, agent):
    now = time.monotonic()
    history = keeping(service, agent)
    history.update(now)  # nothing is due yet
    agent.member.phase = Phase.PREPARING
    for _ in range(2):  # nothing has changed
        history.update(now + 0.1)
    assert [line.get("round") for line in service.lines] == [None, 0, 0]


def test_a_title_that_a_stalled_directory_refuses_is_written_later(service, agent):
    history = keeping(service, agent)
    now = history.deadline()
    service.stalled = True
    history.update(now)
    service.stalled = False
    agent.member.round = 1
    history.update(now)
    title, moment = service.lines
    assert (title["launch"], moment["round"]) == ("71.0", 1)


def test_a_title_that_may_be_lost_on_a_full_disk_is_written_again(service, agent):
    history = keeping(service, agent)
    now = history.deadline()
    history.update(now)
    (name,) = service.names
    service.unwritten[name], agent.member.round = 2, 1
    service.stalled = True
    history.update(now)
    service.stalled = False
    for agent.member.round in (2, 3):
        history.update(now)
    assert [line.get("round") for line in service.lines] == [None, 0, None, 2, 3]


def test_an_agent_without_workers_records_nothing(service, agent):
    agent.member.phase = Phase.PREPARING
    history = keeping(service, agent)
    history.update(time.monotonic())
    history.update(history.deadline())
    assert service.lines == []


def test_without_logs_there_is_no_history(service, agent):
    history = keeping(service, agent, logs=False)
    assert history.deadline() == float("inf")
    history.update(time.monotonic() + 100)
    assert service.lines == []
