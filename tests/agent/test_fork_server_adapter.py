"""The fork server from the agent's side: what the end of its process means."""

from __future__ import annotations

import errno
import math
import os
import signal
import threading
from types import SimpleNamespace

import pytest

from hpclaunch.agent.fork_server import ForkServer
from hpclaunch.core.protocol import effects, events
from hpclaunch.core.protocol.model import Query, QueryKind
from hpclaunch.system.processes.fork_server_client import ForkServerClient
from hpclaunch.worker.fork_server_messages import Listen

FD = 7
LIMIT = 20.0  # seconds; far more than sending takes


class DeadClient:
    """A client whose process was killed, and has no successor."""

    lost, survivors, heard = False, False, True
    gone = True

    def fileno(self):
        return FD

    def hear(self):
        self.lost = True
        return []

    def is_gone(self):
        return self.gone

    def successor(self):
        raise OSError(errno.EAGAIN, "no further process")

    def abandon(self):
        pass


class Resuming:
    """Notes when a round has ended."""

    has_ended = False

    def ended(self):
        self.has_ended = True


@pytest.fixture
def fork_server():
    logs = SimpleNamespace(service=SimpleNamespace(finish=lambda: None))
    context = SimpleNamespace(
        config=SimpleNamespace(),
        environ={},
        host="n1",
        logs=logs,
        errands=None,
        note=None,
        record=None,
    )
    return ForkServer(context, DeadClient(), None, None, None, Resuming())


UNFIT = [
    events.HealthFound("the fork server cannot be started again: no further process"),
    events.WorkersGone(),
]


def test_a_node_where_the_fork_server_cannot_start_again_is_unfit(fork_server):
    assert list(fork_server.ready({FD}, 0.0)) == []
    assert fork_server.update(fork_server.deadline()) == UNFIT


def test_the_loop_runs_while_the_workers_of_a_dead_fork_server_end(fork_server):
    fork_server._client.gone = False
    assert list(fork_server.ready({FD}, 0.0)) == []
    for _ in range(3):
        assert fork_server.update(fork_server.deadline()) == []
    fork_server._client.gone = True
    assert fork_server.update(fork_server.deadline()) == UNFIT
    assert fork_server.deadline() == math.inf


def test_a_round_ends_with_the_fork_server_and_not_when_the_next_one_begins(fork_server):
    """A save that was cut short must not look as if the workers had had time to finish it."""
    assert list(fork_server.ready({FD}, 0.0)) == []
    assert fork_server._resuming.has_ended


@pytest.mark.starts
def test_a_fork_server_that_is_held_up_does_not_block_the_loop(fork_server, monkeypatch):
    """Lease renewals and queries would fill its socket within minutes."""
    client = ForkServerClient()
    pid = client._process.pid
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(fork_server, "_client", client)
    performs = fork_server.performs()
    query = Query(QueryKind.SAMPLE, 1)

    def send():
        for until in range(10_000):
            performs[effects.KeepWorkers](effects.KeepWorkers(float(until)))
            performs[effects.AskWorkers](effects.AskWorkers(query))
            fork_server.ask_vitals(lambda _: None)

    loop = threading.Thread(target=send)
    loop.start()
    loop.join(LIMIT)
    is_blocked = loop.is_alive()
    os.kill(pid, signal.SIGCONT)
    loop.join()
    client.close()
    assert not is_blocked


def test_the_store_for_the_next_round_ends_the_wait_for_gpus_of_the_last(fork_server, monkeypatch):
    done = []
    sharing = SimpleNamespace(cancel=lambda: done.append("cancel"))
    monkeypatch.setattr(fork_server, "_sharing", sharing)
    monkeypatch.setattr(fork_server._config, "job", SimpleNamespace(nodes=1), raising=False)
    monkeypatch.setattr(fork_server._client, "send", done.append, raising=False)
    fork_server.performs()[effects.OpenStore](effects.OpenStore())
    assert done == ["cancel", Listen(True)]
