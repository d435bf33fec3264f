"""Signals to workers that this process may not signal: programs that run as another user."""

from __future__ import annotations

import os
import signal

import pytest

from hpclaunch.worker.workers import Workers

PID = 1 << 22  # of no process


@pytest.fixture
def workers(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(os, "killpg", refuse)
    monkeypatch.setattr("hpclaunch.worker.workers.catches", lambda *_: True)
    workers = Workers(set)
    workers.started(0, PID, ["su"])
    return workers


def test_a_worker_of_another_user_gets_no_signal(workers):
    assert workers.pass_on(signal.SIGUSR1) == []
    workers.signal_groups(signal.SIGCONT)
