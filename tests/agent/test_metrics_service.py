"""The metrics that the service makes of its agent's answers."""

from __future__ import annotations

import math
import selectors
import threading
import time
from contextlib import contextmanager

import pytest

from hpclaunch.agent import metrics_service
from hpclaunch.agent.metrics_messages import Complaint
from hpclaunch.agent.metrics_service import FRESH, Known, MetricsService
from hpclaunch.core.protocol.facts import Category, EndReason, RoundEnded
from hpclaunch.core.protocol.job_snapshot import JobSnapshot, LaunchSnapshot
from hpclaunch.core.protocol.stages import Stage
from hpclaunch.observe.launches import Launch
from hpclaunch.observe.ledger_entries import LedgerEntry
from hpclaunch.system.exposition import Exposition
from hpclaunch.system.metrics_target import MetricsTarget
from hpclaunch.system.network.view_socket import LEDGER, ViewSocket, file_of
from hpclaunch.system.shared import packing
from surroundings import is_asked_by_test

LIMIT = 60.0
JOB = JobSnapshot(
    stage=Stage.RENDEZVOUS,
    entered=1.0,
    head="n1",
    term=0,
    round=1,
    begun=None,
    resumed="",
    fewest=1,
    most=1,
    restarts=2,
    max_restarts=3,
    agents=(),
)
LAUNCH = LaunchSnapshot("71.0", "71", "n1", 1, "train.py", "", 1.7e9, 60.0, JOB)


def spent(begin, end, category, number=None):
    trained = (begin, end) if category is Category.TRAINING else None
    return LedgerEntry(begin, end, 1.0, {category: end - begin}, number, trained)


def packed(*entries, ends=()):
    return packing.pack(Launch("71.0", entries, tuple(ends)))


class Agent:
    """An agent with fixed answers; `asked` are the questions that it has received."""

    def __init__(self):
        self.socket = ViewSocket()
        self.launch = LAUNCH
        self.ledger = b""
        self.asked = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def close(self):
        self._over.set()
        self._thread.join()
        self.socket.close()

    def _answer(self):
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            while not self._over.is_set():
                if not selector.select(0.05):
                    continue
                for word, end in self.socket.receive():
                    self.asked += [word] * is_asked_by_test(end)
                    answer = self.ledger if word == LEDGER else packing.pack(self.launch)
                    self.socket.answer(end, file_of(answer))


@pytest.fixture(autouse=True)
def _agents_have_time(monkeypatch):
    monkeypatch.setattr(metrics_service, "ANSWER", LIMIT)


@contextmanager
def an_agent():
    agent = Agent()
    try:
        yield agent
    finally:
        agent.close()


def value(families, name, **labels):
    found = [s for f in families if f.name == f"hpclaunch_{name}" for s in f.samples]
    return next((s.value for s in found if labels.items() <= s.labels.items()), None)


def until(known, condition):
    deadline = time.monotonic() + LIMIT
    while not condition(families := known.scraped()):
        assert time.monotonic() < deadline
    return families


def test_an_agent_is_asked_at_most_once_a_second_however_many_scrapes_there_are():
    with an_agent() as agent:
        known = Known(agent.socket.name)
        began = time.monotonic()
        threads = [
            threading.Thread(target=lambda: [known.scraped() for _ in range(50)]) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        most = 1 + (time.monotonic() - began) / FRESH
        assert 1 <= agent.asked.count(b"look") <= most
        assert 1 <= agent.asked.count(LEDGER) <= most
        assert value(known.scraped(), "leads") == 1


def test_the_ledger_is_shown():
    entries = (
        spent(100, 200, Category.TRAINING, 0),
        spent(200, 210, Category.DETECTION),
        spent(210, 240, Category.RESTART),
    )
    with an_agent() as agent:
        agent.ledger = packed(*entries)
        known = Known(agent.socket.name)
        families = until(known, lambda found: value(found, "goodput_ratio") is not None)
    assert value(families, "seat_seconds", category="training") == pytest.approx(100)
    assert value(families, "seat_seconds", category="restart") == pytest.approx(30)
    assert value(families, "seat_seconds", category="failure detection") == pytest.approx(10)
    assert value(families, "begin_timestamp_seconds") == pytest.approx(100)


def test_ends_of_rounds_are_counted_although_a_ledger_forgets_old_ones():
    entry = spent(0, 10, Category.TRAINING, 0)
    ends = [RoundEnded(n, float(n), float(n), (EndReason.GROWTH,)) for n in range(5)]
    look = packing.pack(LAUNCH)
    known = Known(b"nobody")
    for shown in (ends[:3], ends[1:4], ends[3:]):
        known.end(look, packed(entry, ends=shown))
    assert value(known.scraped(), "round_ends", cause="more nodes") == 5


def test_the_last_metrics_of_an_ended_agent_are_served():
    with an_agent() as agent:
        known = Known(agent.socket.name)
        before = until(known, lambda found: value(found, "leads") == 1)
    known._looked_at = -math.inf
    after = known.scraped()
    assert value(after, "snapshot_timestamp_seconds") == 1.7e9
    assert value(after, "round") == value(before, "round") == 1


def test_a_port_beyond_the_last_one_is_reported():
    """The agents of one node have consecutive ports, so the last ones may not exist."""
    messages = []

    class Channel:
        def send(self, message):
            messages.append(message)

    known = Known(b"")
    target = MetricsTarget(port=65536)
    service = MetricsService(Channel(), known, target, "", Exposition(known.scraped))
    service._try()
    assert messages == [Complaint("bind(): port must be 0-65535.").encoded()]
