"""Questions to the log service from the agent's side: answers that are late, or never come."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpclaunch.agent import logs as module
from hpclaunch.agent.logs import LastWords, Logs
from hpclaunch.core.protocol.model import Place
from hpclaunch.system.logs.messages import LookAtDisk, Tail

FD = 7


class Service:
    """A client of a log service that answers what the test wants."""

    wanting = lost = False

    def __init__(self):
        self.asked, self.answers = [], []

    def fileno(self):
        return FD

    def send(self, request):
        self.asked.append(request)

    def replies(self):
        return self.answers

    def dropped(self):
        return 0


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def logs(service):
    config = SimpleNamespace(host="n1", place=Place(0, 0, "n1"), logs=None)
    return Logs(config, service, lambda _: None)


def answer(logs, *replies):
    logs.service.answers = replies
    return list(logs.ready({FD}, 0.0))


def test_a_question_that_is_not_answered_in_time_has_no_answer_later_either(logs, service):
    began = time.monotonic()
    logs.ask(LookAtDisk("/logs"), lambda reply: [reply], 5.0)
    logs.ask(LookAtDisk("/logs"), lambda reply: [reply])
    first, second = (question.id for question in service.asked)
    late = logs.deadline()
    assert late >= began + 5.0
    assert list(logs.update(late - 1.0)) == []
    assert list(logs.update(late)) == [None]
    assert logs.deadline() == math.inf
    assert answer(logs, Tail(first, "late")) == []
    assert answer(logs, Tail(second, "in time")) == [Tail(second, "in time")]


@pytest.fixture
def last_words(logs):
    return LastWords(logs)


@pytest.mark.parametrize("is_late", [False, True])
def test_later_events_wait_for_last_lines_for_a_while_only(logs, service, last_words, is_late):
    assert last_words.add(lambda text: [("exit", text)], [Path("rank-0.err")]) == []
    assert last_words.add(lambda _: ["gone"]) == []
    if is_late:
        assert logs.deadline() <= time.monotonic() + module.LINES_LIMIT
        found = list(logs.update(logs.deadline()))
    else:
        found = answer(logs, Tail(service.asked[-1].id, "oops"))
    assert found == [("exit", "" if is_late else "oops"), "gone"]
    assert last_words.add(lambda _: ["next"]) == ["next"]
