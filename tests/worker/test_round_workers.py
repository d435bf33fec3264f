"""Signals to workers: which processes get them, and programs that run as another user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from hpclaunch.worker.processes import foreground, read_proc
from hpclaunch.worker.workers import Workers

PID = 1 << 22  # of no process
LIMIT = 60  # seconds; far more than any of this takes
WITH_FORK = """
import os, signal
signal.signal(signal.SIGUSR1, lambda *_: None)
child = os.fork()
if not child:
    while True:
        signal.pause()
print(child, flush=True)
os.wait()
"""


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


@pytest.mark.starts
def test_a_fork_of_a_process_that_handles_a_signal_does_not_get_it():
    """The fork has inherited the handler, which may save."""
    command = [sys.executable, "-c", WITH_FORK]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as worker:
        try:
            fork = int(worker.stdout.readline())
            limit = time.monotonic() + LIMIT
            while read_proc(f"{worker.pid}/wchan") != b"do_wait":
                assert time.monotonic() < limit
                time.sleep(0.01)
            assert foreground(worker.pid) == [worker.pid, fork]
            assert foreground(worker.pid, signal.SIGUSR1) == [worker.pid]
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
