"""The process that reads and writes the log files, and its client."""

import errno
import fcntl
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from serving import LIMIT, gone

from hpclaunch.core.health.host_rules import Disk
from hpclaunch.system.logs import log_client, log_service
from hpclaunch.system.logs.console import Console
from hpclaunch.system.logs.log_client import LogServiceClient
from hpclaunch.system.logs.log_service import LogService
from hpclaunch.system.logs.messages import (
    REPLIES,
    Append,
    Complaint,
    DiskFound,
    HandOnError,
    Keep,
    LookAtDisk,
    Lost,
    Prepare,
    Prepared,
    ReadFacts,
    ReadTail,
    Refused,
    StreamFile,
    Tail,
    TapTo,
)
from hpclaunch.worker.messages import decode
from surroundings import full_disk

pytestmark = pytest.mark.starts

CAPACITY = 1 << 16  # of a pipe, in bytes


@pytest.fixture
def client():
    client = LogServiceClient()
    yield client
    client.close()


def until(client, kind):
    """Return the next reply of this kind."""
    limit = time.monotonic() + LIMIT
    while time.monotonic() < limit:
        client.flush()
        if select.select([client], [], [], 0.05)[0]:
            for reply in client.replies():
                if isinstance(reply, kind):
                    return reply
    raise AssertionError(f"no {kind}")


def prepare(client, directory, number=1, others=()):
    file = directory / "round-0" / "rank-0.out"
    files = (file, *(file.with_suffix(suffix) for suffix in others))
    streams = tuple(StreamFile(str(each), (TapTo(1, ""),)) for each in files)
    store = str(directory / "store.err")
    index = str(file.parent / "index-agent-0.txt")
    client.send(Prepare(str(file.parent), streams, (), (), store, index, "71.0", "n1", number))
    return file


def test_what_workers_write_is_shown_before_what_the_agent_says_then(tmp_path, capfd):
    client = LogServiceClient()
    file = prepare(client, tmp_path)
    until(client, Prepared)
    with file.open("w") as f:
        f.write("of a worker\n")
    client.say("of the agent")
    client.close()
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("of a worker\n", "hpclaunch: of the agent\n")


def test_the_last_lines_and_the_disk(client, tmp_path):
    file = prepare(client, tmp_path)
    until(client, Prepared)
    file.write_text("one\ntwo\n")
    client.send(ReadTail((str(file),), 2))
    assert until(client, Tail) == Tail(2, "one\ntwo")
    client.send(LookAtDisk(str(tmp_path), 3))
    assert until(client, DiskFound).disk.path == str(tmp_path)


def test_a_long_exception_names_the_file_that_has_it(client, tmp_path):
    """With `2>&1`, standard output has it, and the other file is empty."""
    out = prepare(client, tmp_path, others=[".err"])
    until(client, Prepared)
    message = "".join(f"line {n}\n" for n in range(50))
    out.write_text(message)
    out.with_suffix(".error.json").write_text(json.dumps({"message": {"message": message}}))
    client.send(ReadTail((str(out.with_suffix(".err")), str(out)), 2))
    assert "[... all of it is in rank-0.out]" in until(client, Tail).text


def test_what_cannot_be_made_is_refused(client, tmp_path):
    (tmp_path / "round-0").symlink_to("/nowhere")
    prepare(client, tmp_path)
    refused = until(client, Refused)
    assert (refused.id, refused.file) == (1, str(tmp_path / "round-0"))


def test_lines_that_a_full_disk_cuts_off(tmp_path):
    """The agent learns of it, and the next ones begin a line of their own."""
    client = LogServiceClient()
    pid = client._process.pid
    path = tmp_path / "lines"
    client.send(ReadTail((), 1))
    until(client, Tail)  # its imports must not write cut-off .pyc files
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, -1))
    client.append(tmp_path, "lines", "x" * 5000 + "\n")
    complaint = until(client, Complaint)
    assert (complaint.kind, complaint.what) == ("files", "lines")
    assert complaint.why == f"{os.strerror(errno.EFBIG)}: {tmp_path}"
    assert path.read_text() == "x" * 4096
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (-1, -1))
    for text in ("one\n", "two\n"):
        client.append(tmp_path, "lines", text)
    client.close()
    assert path.read_text() == "x" * 4096 + "\none\ntwo\n"


def test_nothing_waits_for_a_process_that_hangs(client, tmp_path, monkeypatch):
    """Output beyond a limit is dropped and counted."""
    monkeypatch.setattr(log_client, "MOST", 1 << 16)
    pid = client._process.pid
    os.kill(pid, signal.SIGSTOP)
    for _ in range(20000):
        client.say("x" * 100)
    assert client.wanting
    assert len(client._waiting) < 1 << 18
    client.send(ReadTail((str(tmp_path / "none"),), 7))
    os.kill(pid, signal.SIGCONT)
    assert until(client, Tail).id == 7
    assert client.dropped() > 0
    assert client.dropped() == 0


def test_a_successor_counts_the_lines_that_were_dropped_before(client, monkeypatch):
    monkeypatch.setattr(log_client, "MOST", 1 << 16)
    os.kill(client._process.pid, signal.SIGSTOP)
    while client._unsaid < 3:
        client.say("x" * 100)
    os.kill(client._process.pid, signal.SIGKILL)
    while not client.lost:
        client.replies()
    successor = client.successor()
    successor.close()
    assert successor.dropped() == 3


def test_only_the_newest_text_of_a_file_waits_for_a_process_that_hangs(client, tmp_path):
    pid = client._process.pid
    os.kill(pid, signal.SIGSTOP)
    for number in range(100):
        client.keep(tmp_path, {"status.json": str(number) * 50_000})
        client.keep(tmp_path, {"report.json": str(number)})
    assert client.wanting
    assert len(client._waiting) < 1 << 18
    os.kill(pid, signal.SIGCONT)
    client.close()
    assert (tmp_path / "status.json").read_text() == "99" * 50_000
    assert (tmp_path / "report.json").read_text() == "99"


def test_a_successor_writes_only_the_newest_text_of_a_file(client, tmp_path):
    os.kill(client._process.pid, signal.SIGSTOP)
    for number in range(100):
        client.keep(tmp_path, {"status.json": str(number) * 50_000})
    os.kill(client._process.pid, signal.SIGKILL)
    while not client.lost:
        client.replies()
    successor = client.successor()
    assert len(successor._waiting) < 1 << 18
    successor.close()
    assert (tmp_path / "status.json").read_text() == "99" * 50_000


def test_the_successor_of_one_that_was_killed_says_what_it_could_not(client, capfd):
    os.kill(client._process.pid, signal.SIGKILL)
    limit = time.monotonic() + LIMIT
    while not client.lost and time.monotonic() < limit:
        client.replies()
    assert client.lost
    client.say("to nobody, at first")
    client.successor().close()
    assert capfd.readouterr().err == "hpclaunch: to nobody, at first\n"


class Channel:
    """A channel that keeps the log service's replies."""

    def __init__(self):
        self.replies = []

    def send(self, message):
        self.replies.append(decode(REPLIES, message))


@pytest.fixture
def service():
    """A log service in this process."""
    service = LogService(Channel())
    yield service
    service.close()


def test_a_round_that_is_prepared_twice_is_followed_once(service, tmp_path):
    here = tmp_path / "round-0"
    file, filtered = str(here / "rank-0.out"), str(here / "filtered")
    streams = (StreamFile(file, (TapTo(1, ""), TapTo(filtered, "", ("loss",)))),)
    more = (str(here / "store.err"), str(here / "index"), "71.0", "n1")
    request = Prepare(str(here), streams, (filtered,), (), *more, 1)
    for _ in range(2):
        service.serve(request)
    assert service._channel.replies == [Prepared(1)] * 2
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    opened = [os.readlink(link) for link in links if os.path.exists(link)]
    assert [opened.count(path) for path in (file, filtered)] == [1, 1]


def test_each_full_disk_is_reported_once(service, tmp_path):
    directory = str(tmp_path)
    requests = [Append(directory, "lines", "one\n"), Keep(directory, {"status.json": "{}"})]
    for _ in range(2):
        with full_disk():
            for request in requests * 2:
                service.serve(request)
        for request in requests:
            service.serve(request)
    why = f"{os.strerror(errno.EFBIG)}: {directory}"
    complaints = [reply for reply in service._channel.replies if isinstance(reply, Complaint)]
    assert complaints == [Complaint("files", "lines", why)] * 2


def test_the_error_file_of_a_worker_is_handed_on(client, tmp_path):
    """The log service reads it, so that the agent does not wait for a file system that hangs."""
    left, wanted = tmp_path / "rank-1.error.json", tmp_path / "wanted.json"
    left.write_text('{"message": {"message": "ValueError: x"}}')
    client.send(HandOnError({str(tmp_path / "none"): 1, str(left): 7}, str(wanted)))
    client.close()
    assert json.loads(wanted.read_text())["message"]["errorCode"] == 7


def test_a_disk_whose_directory_cannot_be_read(service, tmp_path):
    """A name that is too long stands in for a directory that a file server has lost."""
    directory = str(tmp_path / ("x" * 300))
    service.serve(LookAtDisk(directory, 1))
    seen = Disk(directory, error=os.strerror(errno.ENAMETOOLONG))
    assert service._channel.replies == [DiskFound(1, seen)]


def test_a_file_server_that_refuses_at_the_end_what_it_has_accepted(service, tmp_path, monkeypatch):
    """NFS writes late: close() may be what fails, and the file is closed all the same."""

    def refuses(fd):
        is_written = os.path.exists(f"/proc/self/fd/{fd}") and fcntl.fcntl(fd, fcntl.F_GETFL) & 3
        close(fd)
        if is_written:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    close = os.close
    requests = []
    for number in range(3):
        here = tmp_path / f"round-{number}"
        file, filtered = str(here / "rank-0.out"), str(here / "filtered")
        streams = (StreamFile(file, (TapTo(filtered, "", ("loss",)),)),)
        store, index = str(here / "store.err"), str(here / "index")
        paths = (str(here), streams, (filtered,), (), store, index)
        requests.append(Prepare(*paths, "71.0", "n1", number))
    with monkeypatch.context() as patched:
        patched.setattr(os, "close", refuses)
        for request in requests:
            service.serve(request)
    assert service._channel.replies == [Prepared(0), Prepared(1), Prepared(2)]


def test_a_text_that_cannot_be_written_leaves_the_one_before_and_nothing_else(service, tmp_path):
    service.serve(Keep(str(tmp_path), {"status.json": "one"}))
    with full_disk():
        service.serve(Keep(str(tmp_path), {"status.json": "two"}))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["one"]


def test_lines_that_could_not_be_appended_are_counted_once_there_is_room(service, tmp_path):
    texts = ["one\ntwo\n", "three\n"]
    with full_disk():
        for text in texts:
            service.serve(Append(str(tmp_path), "lines", text))
    (complaint,) = service._channel.replies
    for text in texts:
        service.serve(Append(str(tmp_path), "lines", text))
    assert service._channel.replies == [complaint, Lost("lines", 3)]
    assert (tmp_path / "lines").read_text() == "".join(texts)


def test_at_the_end_a_console_that_stalls_does_not_hide_the_text_of_the_other(service, monkeypatch):
    monkeypatch.setattr(log_service, "STALLED", 0.1)
    (nobody_reads, out), (reads, err) = os.pipe(), os.pipe()
    service.consoles = {1: Console(out), 2: Console(err)}
    for console in service.consoles.values():
        console.say(b"x" * CAPACITY + b"the rest")
    os.read(reads, CAPACITY)
    service.drain()
    assert os.read(reads, CAPACITY) == b"the rest"
    for fd in (nobody_reads, out, reads, err):
        os.close(fd)


def test_a_console_that_seems_writable_and_accepts_nothing_stalls_too(service, monkeypatch):
    monkeypatch.setattr(log_service, "STALLED", 0.1)
    reads, out = os.pipe()
    service.consoles = {2: Console(out)}
    with monkeypatch.context() as full:
        full.setattr(Console, "flush", lambda *_: False)
        service.consoles[2].say(b"text")
        service.drain()
    assert service._channel.replies == []  # it has no sign of life for the agent
    for fd in (reads, out):
        os.close(fd)


AGENT = """
import select, sys, time
from pathlib import Path
from hpclaunch.system.logs.log_client import LogServiceClient
from hpclaunch.system.logs.messages import Prepare, StreamFile, TapTo
client = LogServiceClient()
file = Path(sys.argv[1]) / "round-0" / "rank-0.out"
streams = (StreamFile(str(file), (TapTo(1, ""),)),)
index = str(file.parent / "index-agent-0.txt")
client.send(Prepare(str(file.parent), streams, (), (), str(file), index, "71.0", "n1", 1))
select.select([client], [], [])
file.write_text("a line\\n")
print(client._process.pid, file=sys.stderr, flush=True)
time.sleep(1000)
"""


def test_what_is_left_is_shown_when_the_agent_is_killed(tmp_path):
    command = [sys.executable, "-c", AGENT, str(tmp_path)]
    agent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pid = int(agent.stderr.readline())
    agent.kill()
    out, _ = agent.communicate(timeout=LIMIT)
    assert out == "a line\n"
    assert gone(pid)


def test_at_the_end_an_answer_that_nobody_has_read_stops_nothing(tmp_path):
    """Neither end waits for the other one while both have more to send than the socket holds."""
    title = {"format": 3, "launch": "71.0"}
    facts = [title, *({"fact": "NodeLost", "why": "x" * 1000} for _ in range(1000))]
    (tmp_path / "facts.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    client = LogServiceClient()
    client.send(ReadFacts(str(tmp_path), "71.0", ("NodeLost",)))
    client.append(tmp_path, "lines", "a line\n" * 100_000)
    client.close()
    assert (tmp_path / "lines").stat().st_size == 700_000


def test_at_the_end_a_file_system_that_hangs_is_not_waited_for_for_ever(monkeypatch, capfd):
    monkeypatch.setattr(log_client, "NOTED", 0.1)
    monkeypatch.setattr(log_client, "END_LIMIT", 0.3)
    client = LogServiceClient()
    pid = client._process.pid
    os.kill(pid, signal.SIGSTOP)
    client.close()
    assert gone(pid)
    waits = "waiting up to 0.3 s for the process that shows the workers' output"
    assert capfd.readouterr().err == f"hpclaunch: {waits}\n"
    assert not Path(f"/proc/{pid}/exe").exists()
