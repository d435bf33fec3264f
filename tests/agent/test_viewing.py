"""Answers to viewers, which the training does not need."""

from __future__ import annotations

import errno
import os
import socket
import time
from types import SimpleNamespace

import pytest

from hpclaunch.agent import viewing
from hpclaunch.agent.metrics import Metrics
from hpclaunch.agent.viewing import ViewFile, Viewing
from hpclaunch.core.protocol import events
from hpclaunch.core.protocol.model import Place, Request
from hpclaunch.core.protocol.node_facts import MetricsFailed
from hpclaunch.system.metrics_target import MetricsTarget
from hpclaunch.system.network.view_socket import CONNECTION, file_of


@pytest.fixture
def without_files(monkeypatch):
    """Let no further file be opened. Return a function that ends this."""

    def refuse(_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(viewing, "file_of", refuse)
    return monkeypatch.undo


def made():
    context = SimpleNamespace(config=None, logs=None, date=None)
    control = SimpleNamespace(refusal=lambda _: "")
    return Viewing(context, control, SimpleNamespace(packed=bytes), None, None)


def test_an_answer_for_which_no_file_can_be_opened_is_made_later(without_files):
    file = ViewFile(lambda: b"answer", fresh=0.0)
    assert file.newest() == -1
    without_files()
    file._until = 0.0  # it is too old
    assert os.pread(file.newest(), 100, 0) == b"answer"
    file.close()


def test_a_file_for_an_answer_is_closed_if_it_cannot_be_filled(monkeypatch):
    opened = []

    def create(name, flags):
        opened.append(memfd_create(name, flags))
        return opened[-1]

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    memfd_create = os.memfd_create
    with monkeypatch.context() as full:
        full.setattr(os, "memfd_create", create)
        full.setattr(os, "write", fail)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            file_of(b"answer")
    (fd,) = opened
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(fd)


def test_a_request_is_done_although_it_cannot_be_answered(without_files):
    adapter = made()
    ours, theirs = socket.socketpair(socket.AF_UNIX, CONNECTION)
    with ours, theirs, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        asking.connect(adapter.name)
        socket.send_fds(asking, [b"stop"], [theirs.fileno()])
        theirs.close()
        assert list(adapter.ready({*adapter.fds()}, time.monotonic())) == [
            events.Requested(Request.STOP)
        ]
        assert ours.recv(1) == b""  # the agent has closed its end
    adapter.close()


def test_metrics_that_cannot_be_made_without_a_socket_name_the_reason(monkeypatch):
    def refuse():
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(viewing, "ViewSocket", refuse)
    recorded, here = [], Place(0, 0, "n1")
    config = SimpleNamespace(
        host="n1",
        place=here,
        job=SimpleNamespace(places=(here,)),
        metrics=MetricsTarget(file="prom"),
        allocation=SimpleNamespace(name="71.0", label="0"),
    )
    logs = SimpleNamespace(is_replaced=None)
    Metrics(SimpleNamespace(config=config, logs=logs, record=recorded.append), made())
    why = "the agent has no socket to answer at: Too many open files"
    assert recorded == [MetricsFailed("n1", "prom", why)]
