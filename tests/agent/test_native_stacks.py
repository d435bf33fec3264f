"""The evidence of a hang does not wait for py-spy for ever."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import zmq

from hpclaunch.agent.evidence import HangEvidence
from hpclaunch.agent.native_stacks import LIMIT, NativeStacks
from hpclaunch.system.processes import py_spy

pytestmark = pytest.mark.starts

PY_SPY = '#!/bin/sh\necho "of $4"\n'
ANSWER_LIMIT = 60_000  # ms


@pytest.fixture
def poller():
    return zmq.Poller()


@pytest.fixture
def native(tmp_path, monkeypatch, poller):
    program = tmp_path / "py-spy"
    program.write_text(PY_SPY)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(py_spy, "LIMIT", 60.0)  # this machine may be busy
    native = NativeStacks(poller, lambda _: True)
    yield native
    native.close()


def evidence(number):
    rank = {"rank": 0, "pid": os.getpid(), "stacks": "", "records": None}
    rank |= {"processes": [], "busy": False}
    return HangEvidence(Path("evidence"), number, [rank], {})


def the_helper():
    children = psutil.Process().children()  # also those of other tests
    (helper,) = [child for child in children if py_spy.__name__ in child.cmdline()]
    return helper


def answers(native, poller, limit=ANSWER_LIMIT):
    return native.receive(dict(poller.poll(limit)))


def test_it_is_completed(native, poller):
    assert native.add_to(evidence(1))
    (found,) = answers(native, poller)
    assert found.native == {0: f"of {os.getpid()}\n"}
    assert native.next_deadline() > time.monotonic() + 1e6


def test_it_stays_as_it_is_if_nothing_comes(native, poller):
    assert native.add_to(evidence(1))
    helper = the_helper()
    helper.suspend()
    assert native.expire(time.monotonic()) == []
    assert native.next_deadline() < time.monotonic() + LIMIT
    assert native.expire(native.next_deadline()) == [evidence(1)]

    helper.resume()  # what comes too late is not taken for an answer to the next question
    assert native.add_to(evidence(2))
    found = []
    while not found:
        found = answers(native, poller)
    assert [each.number for each in found] == [2]


def test_it_stays_as_it_is_without_the_process(native, poller, tmp_path):
    (tmp_path / "py-spy").write_text("#!/bin/sh\nexec sleep 600\n")
    assert native.add_to(evidence(1))
    helper = the_helper()
    helper.send_signal(signal.SIGKILL)
    found = []
    while not found:
        found = answers(native, poller)
    assert [(each.number, each.native) for each in found] == [(1, {})]
