"""Helper processes, whatever the agent has open when it starts them."""

import errno
import os
import resource
import signal
import socket
import subprocess
import time

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpclaunch.agent.errands import ErrandServiceClient
from hpclaunch.agent.metrics import MetricsServiceClient
from hpclaunch.core.placement.devices import Gpu
from hpclaunch.core.protocol.process_kinds import ProcessKind
from hpclaunch.system.checkpoints.client import CheckpointServiceClient
from hpclaunch.system.gpus.gpu_watcher_client import GpuWatcherClient
from hpclaunch.system.logs.log_client import LogServiceClient
from hpclaunch.system.metrics_target import MetricsTarget
from hpclaunch.system.shared.helper import Helper, StoppedHelpers
from hpclaunch.worker.json_lines import JsonLines
from hpclaunch.worker.messages import Message
from hpclaunch.worker.processes import is_stopped
from hpclaunch.worker.stop_watch import STOPPED_LIMIT
from surroundings import entered

pytestmark = pytest.mark.starts

LIMIT = 120  # seconds; far more than any of this takes
ECHO = """
import os, select, socket
def main(fd, blocked):
    select.select([int(fd)], [], [])
    for inherited in map(int, os.listdir("/proc/self/fd")):
        assert inherited < 16, inherited
    channel = socket.socket(fileno=int(fd))
    channel.sendall(channel.recv(1000))
"""

DYING = """
import os, signal
def main(fd, blocked):
    os.close(int(fd))  # as in the kernel, when a process exits
    signal.pause()
"""


class Word(Message):
    word: str


@pytest.fixture
def many_files():
    """Open more files than select() takes and than a user's limit usually allows."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1200)]
    yield
    for fd in files:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.skipif("descriptors" in entered, reason="no process can have as many files")
def test_an_agent_with_many_open_files(tmp_path, many_files):
    (tmp_path / "echo.py").write_text(ECHO)
    helper = Helper("echo", paths=[str(tmp_path)])
    helper.send(Word("hello"))
    replies, limit = [], time.monotonic() + LIMIT
    while not replies and not helper.lost and time.monotonic() < limit:
        replies = helper.receive()
        time.sleep(0.01)
    helper.end(LIMIT)
    assert replies == [{"op": "word", "word": "hello"}]


def test_one_that_cannot_be_started_leaves_nothing_behind(monkeypatch):
    def fails(*_, **__):
        raise BlockingIOError(errno.EAGAIN, "no process is left")

    fds = os.listdir("/proc/self/fd")
    monkeypatch.setattr(subprocess, "Popen", fails)
    with pytest.raises(BlockingIOError):
        Helper("nowhere")
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    assert os.listdir("/proc/self/fd") == fds


@pytest.fixture
def waiting(tmp_path):
    """A helper that answers, once it has been asked."""
    (tmp_path / "echo.py").write_text(ECHO)
    helper = Echo("echo", paths=[str(tmp_path)])
    yield helper
    helper.abandon()


class Echo(Helper):
    kind = ProcessKind.METRICS


def test_one_that_stays_stopped_continues_and_is_named(waiting):
    continued = []
    stopped = StoppedHelpers(continued.append)
    pid = waiting._process.pid
    os.kill(pid, signal.SIGSTOP)
    while not is_stopped(pid):
        pass
    stopped.look(0.0)
    stopped.look(STOPPED_LIMIT / 2)
    assert is_stopped(pid)
    assert continued == []
    stopped.look(STOPPED_LIMIT)
    assert not is_stopped(pid)
    assert continued == [ProcessKind.METRICS]
    waiting.send(Word("hello"))
    assert waiting.receive() == [{"op": "word", "word": "hello"}]


def test_one_that_has_ended_is_not_stopped(waiting):
    pid = waiting._process.pid
    os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        pass
    assert not is_stopped(pid)
    waiting._process.wait()
    assert not is_stopped(pid)


class Parent(Helper):
    has_children = True


def test_one_whose_death_is_held_up_holds_up_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr("hpclaunch.system.shared.helper.GONE_LIMIT", 0.1)
    (tmp_path / "dying.py").write_text(DYING)
    helper = Parent("dying", paths=[str(tmp_path)])
    while not helper.lost:
        helper.receive()
    assert helper.survivors
    helper.abandon()


class Dance(Message):
    """A message of no protocol."""

    partner: str


@pytest.mark.parametrize(
    "start",
    [
        lambda _: ErrandServiceClient(),
        lambda directory: CheckpointServiceClient(str(directory), (), "", "auto"),
        lambda _: LogServiceClient(),
        lambda _: GpuWatcherClient([Gpu("0", "GPU-0", 0)]),
        lambda directory: MetricsServiceClient(
            b"nobody", MetricsTarget(file=str(directory / "prom")), "", ranks=False
        ),
    ],
    ids=["errands", "checkpoints", "logs", "gpus", "metrics"],
)
def test_a_message_that_a_helper_does_not_know_is_an_error_with_its_name(start, tmp_path, capfd):
    helper = start(tmp_path)
    helper._socket.setblocking(True)
    helper.send(Dance("me"))
    while not helper.lost:
        helper.receive()
    assert not helper.was_killed()
    helper.abandon()
    assert capfd.readouterr().err.endswith("MessageError: unknown message 'dance'\n")


@pytest.mark.fuzz
@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text())), st.lists(st.integers(1, 9)))
def test_messages_arrive_in_whatever_pieces(messages, sizes):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        JsonLines(ours).send({})
        for message in messages:
            JsonLines(ours).send(message)
        ours.shutdown(socket.SHUT_WR)
        data, pieces, arrived = theirs.recv(1 << 16), [], []
        for size in [*sizes, 1 << 16]:
            pieces, data = [*pieces, data[:size]], data[size:]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        lines = JsonLines(theirs)
        for piece in filter(None, pieces):
            ours.send(piece)
            arrived += lines.receive()
    assert arrived == [{}, *messages]
