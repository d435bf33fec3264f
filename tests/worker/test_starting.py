"""The start of a round's processes where the kernel grants none."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import socket
from types import SimpleNamespace

import pytest

from hpclaunch.worker.death_notices import LONGEST, new_question, signed_answer
from hpclaunch.worker.fork_server_messages import Prepare, Start, Step, StoreExit, Template
from hpclaunch.worker.json_lines import JsonLines
from hpclaunch.worker.notice_board import NoticeBoard
from hpclaunch.worker.processes import Spawner
from hpclaunch.worker.starting import Callbacks, Starting
from hpclaunch.worker.store import Store
from hpclaunch.worker.template_client import State, TemplateClient, TemplateProcess
from hpclaunch.worker.template_messages import Forked, Ready
from surroundings import entered

WHY = "the template process cannot be started: no further process"


@pytest.fixture
def reported():
    return []


@pytest.fixture
def starting(reported, monkeypatch):
    def refuse():
        raise BlockingIOError(errno.EAGAIN, "no further process")

    monkeypatch.setattr(os, "fork", refuse)
    spawner = Spawner({}, ())
    on = Callbacks(reported.append, None, None, None)
    template, lease = TemplateClient(spawner, ()), SimpleNamespace(holds=False)
    starting = Starting(spawner, template, Store(), lease, on)
    yield starting
    starting.store.close()


def open_files():
    return len(os.listdir("/proc/self/fd"))


def test_a_template_that_cannot_start_is_reported_and_leaves_nothing_open(starting, reported):
    before = open_files()
    assert not starting.start_template()
    assert reported == [Template("dead", WHY)]
    assert starting.template.state is State.NONE
    assert starting.template.fileno() == -1
    assert open_files() == before


def test_the_next_round_tries_again_to_start_a_template(starting, monkeypatch):
    starting.start_template()
    tried = []
    monkeypatch.setattr(starting.template, "start", lambda: tried.append(1))
    start = Start([], {}, "", [], False, False, False, {}, (), False)
    starting.start(start, {})
    assert tried == []
    starting.start(start.replaced(warm=True), {})
    assert tried == [1]


@pytest.fixture
def learned(starting):
    """A template that has a step to do."""
    template = starting.template
    template.prepare(Prepare([], {}, [], [], False, [Step("import", "numpy", None)]))
    template.state = State.READY
    template.process = SimpleNamespace(output=[os.memfd_create(name) for name in ("out", "err")])
    yield template
    for fd in template.process.output:
        os.close(fd)


@pytest.mark.parametrize(
    ("owner", "name", "granted"),
    [(os, "memfd_create", 1), (os, "sendfile", 1), (socket, "socketpair", 0)],
)
def test_without_descriptors_there_is_no_successor(learned, monkeypatch, owner, name, granted):
    real, calls = getattr(owner, name), []

    def refuse(*args):
        calls.append(args)
        if len(calls) > granted:
            raise OSError(errno.EMFILE, "too many open files")
        return real(*args)

    before = open_files()
    monkeypatch.setattr(owner, name, refuse)
    learned.renew(idle=False)
    assert len(calls) == granted + 1
    assert learned.successors() == []
    assert open_files() == before


@pytest.fixture
def high():
    """Return one end of a connection, with a number that select() does not take, and the other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    one, other = socket.socketpair()
    moved = socket.socket(fileno=fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 1024))
    one.close()
    yield moved, other
    other.close()
    moved.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


many_files = pytest.mark.skipif("descriptors" in entered, reason="no process can have as many")


@many_files
def test_a_template_that_is_started_while_many_files_are_open(starting, high):
    """Each worker takes four descriptors of the fork server."""
    ours, theirs = high
    starting.template.process = TemplateProcess(ours, [], 0)
    assert starting.template.receive() == []
    JsonLines(theirs).send(Ready(["python"]).encoded())
    assert starting.template.receive() == [Ready(["python"])]


@many_files
def test_a_notice_that_is_posted_while_many_files_are_open(high):
    board, (ours, theirs) = NoticeBoard(), high
    board.prepare(0, "dead", "00", "release")
    board._asking.append(ours)
    question = new_question()
    theirs.send(question)
    board.serve(0.0)
    assert theirs.recv(LONGEST) == signed_answer(b"dead", b"\0", question)


def test_a_store_for_which_no_template_can_start_is_lost_at_once(starting, reported):
    port = starting.store.listen(loopback=True)
    starting.store.begin("store.err", ())
    with socket.create_connection(("127.0.0.1", port)):
        assert starting.stores_to_watch() == [starting.store]
        starting.on_store_wanted()
    assert reported == [Template("dead", WHY), StoreExit(port, 1, 0, WHY)]
    assert starting.stores_to_watch() == []


def test_an_end_that_was_no_stores_is_not_taken_for_that_of_a_later_one(
    starting, reported, monkeypatch
):
    leftover = 100
    for pid in (200, leftover):
        starting.store.asked = True
        if pid != leftover:
            starting.ended(leftover, 0, 0)
        reply = Forked("store", {}, pid, "")
        monkeypatch.setattr(starting.template, "receive", lambda _, reply=reply: [reply])
        starting.hear_template()
    assert starting.store.pid == leftover
    assert reported == []
