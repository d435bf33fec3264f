"""The command of --notify, and what it may do to the process that runs it."""

from __future__ import annotations

import json
import os
import select
import signal
import time

import pytest

from hpclaunch.system.notifier import NotifierClient, run

pytestmark = pytest.mark.starts

EVENT = {"event": "hang", "text": "rank 3 hung: 'é' \"x\"", "round": 2}
LIMIT = 60.0  # seconds; far more than any of this takes


def answer(client):
    assert select.select([client], [], [], LIMIT)[0]
    (reply,) = client.receive()
    return reply["why"]


@pytest.fixture
def client_of():
    clients = []

    def make(command):
        clients.append(NotifierClient(command))
        return clients[-1]

    yield make
    for client in clients:
        client.end(0.0)


def test_it_reads_the_event(client_of, tmp_path):
    client = client_of(f"cat >> {tmp_path}/events; echo dropped")
    for number in range(3):
        client.ask(event=EVENT | {"round": number})
        assert answer(client) == ""
    lines = (tmp_path / "events").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [EVENT | {"round": n} for n in range(3)]


def test_it_is_a_line_for_a_shell_with_the_environment_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("URL", "a b")
    monkeypatch.chdir(tmp_path)
    assert run('printf %s "$URL" | tr a-z A-Z > out && test -f out', EVENT) == ""
    assert (tmp_path / "out").read_text() == "A B"


def test_signals_are_as_the_user_has_them(tmp_path):
    """The helper itself blocks all."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGTERM])
    try:
        assert run(f"grep SigBlk /proc/self/status > {tmp_path}/out", {}, [signal.SIGUSR2]) == ""
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    blocked = int((tmp_path / "out").read_text().split()[1], 16)
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
    assert why in run(command, EVENT)


def test_one_that_hangs_is_killed_with_all_that_it_has_started(tmp_path):
    said = run(f"sleep 1000 & echo $! > {tmp_path}/pid; sleep 1000", EVENT, limit=0.5)
    assert said == "was killed: it took longer than 0.5 s"
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + LIMIT
    while not is_gone(pid):
        assert time.monotonic() < deadline


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_what_it_leaves_running_holds_up_nobody(tmp_path):
    assert run(f"sleep 1000 & echo $! > {tmp_path}/pid", EVENT) == ""
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_one_that_reads_nothing_of_a_large_event():
    assert run("true", {"text": "x" * (1 << 20)}) == ""


def test_the_client_waits_no_longer_than_it_is_told(client_of):
    client = client_of("sleep 1000")
    client.ask(event=EVENT)
    assert client.wait(0.2) == []
    client.end(0.0)
