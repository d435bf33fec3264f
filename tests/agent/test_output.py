"""The files that an agent opens to show its workers' output, round after round."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from polling import LIMIT, receive

from hpclaunch.agent.logs import Logs, LogsLostError
from hpclaunch.agent.output import Output
from hpclaunch.core.placement.streams import Streams
from hpclaunch.core.protocol.model import Allocation, Assignment, Place
from hpclaunch.system.logs.log_client import LogServiceClient
from hpclaunch.system.logs.log_service import LogService
from hpclaunch.system.logs.messages import (
    REPLIES,
    REQUESTS,
    Complaint,
    Prepared,
    ReadTail,
    Refused,
    Reply,
    Tail,
)
from hpclaunch.system.shared import helper
from hpclaunch.system.shared.helper import GONE_LIMIT
from hpclaunch.worker.fork_server_messages import Worker
from hpclaunch.worker.messages import Message, decode
from surroundings import full_disk

NPROC = 2


class StalledConsole:
    """A console that accepts nothing until it has room."""

    room = 0
    wanting = False
    at_line_start = True

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    say = write


class Channel:
    """A channel that keeps the log service's replies."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []

    def send(self, message: dict[str, Any]) -> None:
        self.replies.append(decode(REPLIES, message))


class LocalClient(LogServiceClient):
    """A client of a log service in this process."""

    def __init__(self, service: LogService) -> None:
        self.service = service

    def send(self, request: Message) -> None:
        self.service.serve(decode(REQUESTS, json.loads(json.dumps(request.encoded()))))


@pytest.fixture
def service():
    service = LogService(Channel())
    yield service
    service.close()


@pytest.fixture
def output(service):
    streams = Streams(stdout_filters=("loss",), stderr_filters=("loss",))
    places = (Place(0, 0, "n1"),)
    allocation = Allocation("71.0", "identity", places, 0)
    config = SimpleNamespace(
        allocation=allocation,
        logs=None,
        place=places[0],
        host="n1",
        streams=streams,
        role="",
    )
    logs = Logs(config, LocalClient(service), lambda _: None)
    return Output(SimpleNamespace(config=config, logs=logs, host="n1"))


def no_events(_: Reply | None) -> tuple[()]:
    """Return no events for a reply."""
    return ()


def begin(output: Output, number: int, directory: Path) -> list[Path]:
    """Begin a round; return the files to which its workers write."""
    part = Assignment(number, 0, 0, NPROC, NPROC, 0, NPROC, 0, 1, "2", "", "", 0, False, "")
    here = directory / f"round-{number}"
    workers = [
        Worker(rank, [], {}, str(here / f"rank-{rank}.out"), str(here / f"rank-{rank}.err"))
        for rank in range(NPROC)
    ]
    output.prepare(part, workers, here, errors=[], store=here / "store.err", done=no_events)
    return [Path(file) for w in workers for file in (w.out, w.err)]


def duplicates(directory: Path, number: int) -> list[str]:
    paths = sorted((directory / f"round-{number}").glob("filtered-agent-0.*"))
    return [path.read_text() for path in paths]


@pytest.mark.starts
def test_a_round_leaves_nothing_open(output, service, tmp_path, capfd):
    held = []
    for number in range(8):
        for path in begin(output, number, tmp_path):
            path.write_text(f"loss {path.name}\n")
        service.mirror.finish(1.0)
        held.append(len(os.listdir("/proc/self/fd")))
    assert len(set(held)) == 1, held
    for number in range(8):
        errors, out = (text.splitlines() for text in duplicates(tmp_path, number))
        assert sorted(errors) == ["[0]:loss rank-0.err", "[1]:loss rank-1.err"]
        assert sorted(out) == ["[0]:loss rank-0.out", "[1]:loss rank-1.out"]


def test_lines_are_duplicated_once_a_stalled_console_continues(output, service, tmp_path):
    stalled = StalledConsole()
    service.consoles = {1: stalled, 2: stalled}
    for path in begin(output, 0, tmp_path):
        path.write_text(f"loss {path.name}\n")
    service.mirror.finish(1.0)
    begin(output, 1, tmp_path)
    assert duplicates(tmp_path, 0) == ["", ""]
    stalled.room = 1 << 20
    service.mirror.finish(2.0)
    assert [text.count("loss") for text in duplicates(tmp_path, 0)] == [NPROC, NPROC]
    assert stalled.data.count(b"loss") == 2 * NPROC
    before = len(os.listdir("/proc/self/fd"))
    begin(output, 2, tmp_path)  # this also ends the first round
    assert len(os.listdir("/proc/self/fd")) == before - 2 * NPROC - 2


def test_the_end_of_duplicates_is_reported_in_the_next_round_too(output, service, tmp_path):
    here, screen = tmp_path / "round-0", StalledConsole()
    screen.room = 1 << 20
    service.consoles = {1: screen, 2: screen}
    (path, *_) = begin(output, 0, tmp_path)
    path.write_text("loss")  # an unfinished line, which is written when its round is closed
    service.mirror.wake(1.0)
    with full_disk():
        begin(output, 1, tmp_path)
    complaints = [each for each in service._channel.replies if isinstance(each, Complaint)]
    why = os.strerror(errno.EFBIG)
    assert complaints == [Complaint("duplicates", f"{here}/filtered-agent-0.out", why)]


def test_a_round_begins_with_a_private_directory_and_without_old_errors(output, service, tmp_path):
    here = tmp_path / "round-0"
    here.mkdir()
    error = here / "rank-0.error.json"
    error.touch()
    part = Assignment(0, 0, 0, 1, 1, 0, 1, 0, 1, "1", "", "", 0, False, "")
    for number in range(2):
        here = tmp_path / f"round-{number}"
        workers = [Worker(0, [], {}, str(here / "rank-0.out"), str(here / "rank-0.err"))]
        store = here / "store.err"
        output.prepare(part, workers, here, errors=[str(error)], store=store, done=no_events)
    assert not error.exists()
    assert here.stat().st_mode & 0o777 == 0o700
    assert service._channel.replies == [Prepared(n) for n in (1, 2)]


def test_a_round_that_cannot_begin_names_the_file(output, service, tmp_path):
    (tmp_path / "round-0").write_text("in the way")
    begin(output, 0, tmp_path)
    (reply,) = service._channel.replies
    assert isinstance(reply, Refused)
    assert reply.file == str(tmp_path / "round-0")


def test_the_last_lines_are_those_of_this_round(output, service, tmp_path):
    (out, *_) = begin(output, 0, tmp_path)
    out.write_text("of an earlier launch\n")
    begin(output, 0, tmp_path)
    output.logs.ask(ReadTail((str(out),)), no_events)
    with out.open("a") as f:
        f.write("the last line\n")
    output.logs.ask(ReadTail((str(tmp_path / "none"), str(out))), no_events)
    texts = [reply.text for reply in service._channel.replies if isinstance(reply, Tail)]
    assert texts == ["", "the last line"]


@pytest.mark.starts
def test_a_log_service_that_cannot_start_again_ends_the_agent_with_the_reason(monkeypatch):
    def refuse(_):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    config = SimpleNamespace(host="n1", logs=None)
    logs = Logs(config, LogServiceClient(), lambda _: None)
    monkeypatch.setattr(LogServiceClient, "successor", refuse)
    logs.service.say("a line")
    os.kill(logs.service._process.pid, signal.SIGKILL)
    with pytest.raises(LogsLostError, match=f"on n1: .*: {os.strerror(errno.EAGAIN)}"):
        receive(logs)
    logs.service.say("another")
    logs.close()


@pytest.mark.starts
def test_a_log_service_that_does_not_end_is_not_waited_for(monkeypatch):
    """The heartbeat would wait as well."""
    monkeypatch.setattr(helper, "ABANDON_LIMIT", 1.0)  # as outside of tests
    logs = Logs(SimpleNamespace(host="n1", logs=None), LogServiceClient(), lambda _: None)
    lost = logs.service
    os.kill(lost._process.pid, signal.SIGSTOP)
    lost._socket.shutdown(socket.SHUT_RD)  # as if it had closed its end
    began = time.monotonic()
    receive(logs)
    assert time.monotonic() < began + GONE_LIMIT
    assert logs.service is not lost
    assert lost._process.wait(LIMIT) == -signal.SIGKILL
    logs.close()
