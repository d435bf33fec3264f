"""Helper processes, whatever the agent has open when it starts them."""

import contextlib
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

from helper_programs import program_after
from hpclaunch.agent.errands import ErrandServiceClient
from hpclaunch.agent.metrics import MetricsServiceClient
from hpclaunch.core.placement.devices import Gpu
from hpclaunch.system.checkpoints.client import CheckpointServiceClient
from hpclaunch.system.gpus.gpu_watcher_client import GpuWatcherClient
from hpclaunch.system.logs.log_client import LogServiceClient
from hpclaunch.system.metrics_target import MetricsTarget
from hpclaunch.system.shared.helper import Helper
from hpclaunch.worker.json_lines import JsonLines
from hpclaunch.worker.messages import Message
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


PARENT = """
import json, os, subprocess, time
def main(fd, blocked):
    child = subprocess.Popen(["sleep", "1000"])
    os.write(int(fd), json.dumps({"child": child.pid}).encode() + b"\\n")
    os.close(int(fd))
    time.sleep(1000)
"""


class Parent(Helper):
    has_children = True


@pytest.fixture
def parent(tmp_path, monkeypatch):
    """A helper that has a child, closes its socket, and does not end; and the child's pid."""
    monkeypatch.setattr("hpclaunch.system.shared.helper.GONE_LIMIT", 0.1)
    (tmp_path / "parent.py").write_text(PARENT)
    parent = Parent("parent", paths=[str(tmp_path)])
    (reply,) = parent.receive()
    child = reply["child"]
    yield parent, child
    for pid in (child, parent._process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    parent._process.wait()
    parent.abandon()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


def lose(server):
    while not server.lost:
        server.receive()


def test_a_lost_helper_that_does_not_end_is_not_waited_for_for_ever(parent, monkeypatch):
    server, _ = parent
    monkeypatch.setattr("hpclaunch.system.shared.helper.GONE_LIMIT", LIMIT)
    lose(server)
    assert not server.is_gone()
    assert not server.survivors
    monkeypatch.setattr("hpclaunch.system.shared.helper.GONE_LIMIT", 0.0)
    assert server.is_gone()
    assert server.survivors


def poll(server):
    while not server.is_gone():
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("is_noticed", "end"),
    [
        (True, poll),
        (True, Parent.abandon),
        (True, lambda server: server.end(0.0)),
        (False, lambda server: server.end(LIMIT)),
    ],
)
def test_the_children_of_a_lost_helper_are_killed(parent, monkeypatch, is_noticed, end):
    for limit in ("GONE_LIMIT", "ABANDON_LIMIT"):
        monkeypatch.setattr(f"hpclaunch.system.shared.helper.{limit}", LIMIT)
    server, child = parent
    if is_noticed:
        lose(server)
    server._process.kill()
    end(server)
    assert not psutil.pid_exists(child)
    assert not server.survivors


def test_a_helper_that_cannot_be_killed_is_not_waited_for_for_ever(parent, monkeypatch):
    """Such a process waits in the kernel, for a disk or a driver."""
    server, _ = parent
    monkeypatch.setattr(server._process, "kill", lambda: None)
    server.end(0.0)
    assert server.survivors


def test_a_child_of_a_helper_that_runs_as_another_user_may_survive(parent, monkeypatch):
    server, child = parent
    kill = os.kill

    def kill_own(pid, signum):
        if pid == child:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        kill(pid, signum)

    monkeypatch.setattr(os, "kill", kill_own)
    server.end(0.0)
    monkeypatch.undo()
    assert server.survivors
    assert psutil.pid_exists(child)


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
            b"nobody", MetricsTarget(file=str(directory / "prom")), ""
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


def test_one_that_has_failed_was_not_killed_though_it_is_cleaned_up_at_once(monkeypatch, capfd):
    """The socket closes before the process ends."""
    slowly = program_after("import atexit, time; atexit.register(time.sleep, 0.3)")
    monkeypatch.setattr("hpclaunch.system.shared.helper._PROGRAM", slowly)
    helper = ErrandServiceClient()
    helper.send(Dance("me"))
    lose(helper)
    helper.abandon()
    assert not helper.was_killed()
    helper.send_if_read(Dance("me"))  # nobody gets it


def test_one_that_was_lost_a_while_ago_is_not_waited_for_again(parent, monkeypatch):
    """The agent sends no heartbeat while it waits."""
    monkeypatch.setattr("hpclaunch.system.shared.helper.ABANDON_LIMIT", 1.0)
    server, _ = parent
    lose(server)
    server._lost_at -= 1.0
    limits = []

    def wait(limit):
        limits.append(limit)
        raise subprocess.TimeoutExpired("", limit)

    with monkeypatch.context() as hanging:
        hanging.setattr(server._process, "wait", wait)
        server.abandon()
        assert server.was_killed()
    assert limits == [0.0, 1.0, 0.0]


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
