"""The commands that errands run: that of --notify, and py-spy."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpclaunch.system.processes.commands import notify, stacks
from living import living

pytestmark = pytest.mark.starts

EVENT = {"event": "hang", "text": "rank 3 hung: 'é' \"x\"", "round": 2}
LIMIT = 60.0  # seconds; far more than any of this takes


def test_it_reads_the_event(tmp_path):
    event = tmp_path / "event"
    assert notify(f"cat > {shlex.quote(str(event))}; echo dropped", EVENT) == ""
    assert json.loads(event.read_text()) == EVENT


def test_it_is_a_line_for_a_shell_with_the_environment_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("URL", "a b")
    monkeypatch.chdir(tmp_path)
    assert notify('printf %s "$URL" | tr a-z A-Z > out && test -f out', EVENT) == ""
    assert (tmp_path / "out").read_text() == "A B"


def test_signals_are_as_the_user_has_them(tmp_path):
    """The helper itself blocks all signals."""
    out = tmp_path / "out"
    command = f"grep SigBlk /proc/self/status > {shlex.quote(str(out))}"
    old = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGTERM])
    try:
        assert notify(command, {}, [signal.SIGUSR2]) == ""
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    blocked = int(out.read_text().split()[1], 16)
    assert blocked in (0, 1 << (signal.SIGUSR2 - 1))  # some shells begin with none


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("exit 3", "ended with 3"),
        ("echo first >&2; echo last >&2; echo >&2; false", "ended with 1: last"),
        ("no-such-command", "not found"),
        ("kill -9 $$", "was killed by signal 9"),
        ("if", "ended with 2"),
    ],
)
def test_what_went_wrong(command, why):
    assert why in notify(command, EVENT)


def test_one_that_hangs_is_killed_with_all_that_it_has_started(tmp_path):
    started = tmp_path / "pid"
    command = f"sleep 1000 & echo $! > {shlex.quote(str(started))}; sleep 1000"
    while not started.exists() or not started.read_text():  # it was killed before it had begun
        said = notify(command, EVENT, limit=0.5)
        assert said == "was killed: it took longer than 0.5 s"
    pid = int(started.read_text())
    deadline = time.monotonic() + LIMIT
    while living([pid]):
        assert time.monotonic() < deadline


def test_what_it_leaves_running_holds_up_nobody(tmp_path):
    pid = tmp_path / "pid"
    assert notify(f"sleep 1000 & echo $! > {shlex.quote(str(pid))}", EVENT) == ""
    os.kill(int(pid.read_text()), signal.SIGKILL)


def test_one_that_reads_nothing_of_a_large_event():
    assert notify("true", {"text": "x" * (1 << 20)}) == ""


PROGRAM = shutil.which("py-spy", path=Path(sys.executable).parent)
WAITS = """
import ctypes
native, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
native.pthread_mutex_lock(mutex)
print(flush=True)
native.pthread_mutex_lock(mutex)
"""


@pytest.fixture
def waiting():
    """Start a process that waits in C and holds the GIL; yield its pid."""
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.mark.skipif(PROGRAM is None, reason="needs py-spy")
def test_the_stack_of_a_process_that_holds_pythons_lock(waiting):
    (text,) = stacks(PROGRAM, [waiting], time.monotonic() + 60.0)
    assert "pthread_mutex_lock" in text or "ermission" in text, text


def test_what_is_in_the_way(tmp_path):
    (text,) = stacks(str(tmp_path / "missing"), [1], math.inf)
    assert text.endswith("/missing: No such file or directory\n")


def test_a_py_spy_that_hangs_is_killed_with_all_that_it_has_started(tmp_path):
    """Children of py-spy hold its output, and may ignore its death."""
    program, pids = tmp_path / "py-spy", tmp_path / "pids"
    program.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! $$ > '{pids}'\nsleep 1000\n")
    program.chmod(0o755)
    while not pids.exists() or not pids.read_text():  # it was killed before it had begun
        assert stacks(str(program), [1], time.monotonic() + 0.5) == ("",)
    for pid in map(int, pids.read_text().split()):
        deadline = time.monotonic() + LIMIT
        while living([pid]):
            assert time.monotonic() < deadline
