"""The journal: what the core received and answered; a full disk does no harm."""

from __future__ import annotations

import dataclasses
import enum
import errno
import functools
import json
import os
import resource
import select
import signal
import typing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpclaunch.core.control import Control
from hpclaunch.core.member.member import AgentStart
from hpclaunch.core.protocol.effects import Effect
from hpclaunch.core.protocol.events import CheckpointChosen, Received, Started, StoreListening, Tick
from hpclaunch.core.protocol.messages import Order
from hpclaunch.core.protocol.model import Goal, Job, Place
from hpclaunch.core.protocol.values import replace
from hpclaunch.system.logs import appended_lines, journal, log_client, messages
from hpclaunch.system.logs.journal import Journal, Recorder
from hpclaunch.system.logs.log_client import LogServiceClient
from hpclaunch.system.shared import packing
from journals import EVENTS, event_of, feed, plain

PLACES = (Place(0, 0, "n1"), Place(1, 1, "n2"))
MADE = AgentStart(Job(PLACES), 1, 2, "10.0.0.2", "a1")
OLD_NAME = os.fsdecode(b"/points/gr\xf6\xdfe.pt")  # in Latin-1


def order(serial, goal=Goal.WAIT):
    return Received(0, Order(0, serial, "a1", goal, 0))


STORY = [Started(), StoreListening(4000), *map(order, range(1, 5)), Tick(), Tick(), order(5)]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(journal, service, *story, made=MADE, now=1.0):
    """Handle the events and write the journal like an agent."""
    core = Control(made)
    journal.began(made)
    for event in story:
        now += 0.5
        journal.event(event, now)
        journal.effects(core.handle(event, now), core)
        journal.lines.flush(service)


def kept(directory, label, *story, **more):
    """Run a core whose journal is in the directory."""
    service, journal = LogServiceClient(), Journal(directory, label)
    write(journal, service, *story, **more)
    journal.note("last", {})
    journal.finish(service)
    service.close()


def recorded(*story):
    """Return the journal's lines of a run."""
    written = []
    core, recorder = Control(MADE), Recorder(written.append, clock=lambda: 1e9)
    recorder.began(MADE, 0.0)
    for now, event in enumerate(story):
        recorder.event(event, float(now))
        recorder.effects(core.handle(event, float(now)), core)
    return written


@pytest.mark.starts
def test_it_begins_with_the_core_and_has_what_is_new(tmp_path):
    kept(tmp_path, "2", *STORY)
    path = tmp_path / "journal-agent-2.jsonl"
    entries = lines(path)
    assert entries[0]["note"] == "core"
    assert entries[0]["with"]["made"]["job"]["places"][1]["host"] == "n2"
    news = [e["event"] for e in entries if "event" in e]
    assert news == ["Started", "StoreListening", "Received"]
    assert [e["of"] for e in entries if e.get("effect") == "Send"] == ["Report"] * 3
    positions = [e["with"]["phase"] for e in entries if e.get("note") == "position"]
    assert positions == ["preparing", "idle"]
    assert entries[-1]["note"] == "last"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_whole_one_leads_to_the_same_effects(monkeypatch):
    monkeypatch.setattr(journal, "WHOLE", True)
    entries = recorded(*STORY)
    assert feed(entries) == len(STORY)
    (at,) = [i for i, line in enumerate(entries) if b'"StoreListening"' in line]
    with pytest.raises(AssertionError, match="line"):
        feed(entries[:at] + entries[at + 2 :])


def test_an_event_in_which_the_core_fails_is_recorded():
    written = []
    recorder = Recorder(written.append)
    recorder.event(Tick(), 1.0)
    recorder.add_failed_event()
    assert [json.loads(line)["event"] for line in written] == ["Tick"]


@pytest.mark.starts
def test_names_of_files_in_another_encoding(tmp_path):
    kept(tmp_path, "0", Started(), CheckpointChosen(OLD_NAME), made=replace(MADE, index=0))
    (entry,) = [
        e for e in lines(tmp_path / "journal.jsonl") if e.get("event") == "CheckpointChosen"
    ]
    assert event_of(entry) == CheckpointChosen(OLD_NAME)


@pytest.mark.starts
def test_another_run_continues_in_the_same_file(tmp_path):
    (tmp_path / "journal.jsonl").write_bytes(b'{"time":1,"no')  # its node was lost
    kept(tmp_path, "0", Started())
    torn, *whole = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert torn == '{"time":1,"no'
    assert json.loads(whole[0])["note"] == "core"


@pytest.mark.starts
def test_a_full_disk_is_reported_once(tmp_path):
    service, journal = LogServiceClient(), Journal(tmp_path, "0")
    service.send(messages.ReadTail((), 1))
    select.select([service], [], [])  # its imports must not write cut-off .pyc files
    resource.prlimit(service._process.pid, resource.RLIMIT_FSIZE, (100, 100))
    write(journal, service, *STORY)
    journal.finish(service)
    (complaint,) = service.close()
    assert (complaint.kind, complaint.what) == ("files", "journal.jsonl")
    assert complaint.why.startswith(os.strerror(errno.EFBIG))


@pytest.mark.starts
def test_what_a_full_disk_has_cost_is_counted_without_a_further_line(tmp_path):
    service, journal = LogServiceClient(), Journal(tmp_path, "0")
    service.send(messages.ReadTail((), 1))
    select.select([service], [], [])  # its imports must not write cut-off .pyc files
    pid = service._process.pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (10, -1))
    for name in ("one", "two"):
        journal.note(name, {})
    journal.lines.flush(service)
    replies = []
    while not any(isinstance(reply, messages.Complaint) for reply in replies):
        replies += service.replies()
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (-1, -1))
    while not any(isinstance(reply, messages.Lost) for reply in replies):
        journal.note("room", {})
        journal.lines.flush(service)
        replies += service.replies()
    journal.lines.flush(service)
    journal.finish(service)
    service.close()
    *_, room, gap = map(json.loads, (tmp_path / "journal.jsonl").read_text().splitlines()[1:])
    assert (room["note"], gap["note"], gap["with"]) == ("room", "gap", {"lines": 2})


def test_without_a_directory_there_is_none():
    journal = Journal(None, "0")
    write(journal, None, *STORY)
    journal.note("started", {})
    journal.finish(None)


@pytest.mark.starts
def test_a_file_system_that_hangs_costs_lines_and_no_time(tmp_path, monkeypatch):
    monkeypatch.setattr(appended_lines, "MOST", 100_000)
    monkeypatch.setattr(appended_lines, "CHUNK", 1000)
    service, recorded = LogServiceClient(), Journal(tmp_path, "1")
    os.kill(service._process.pid, signal.SIGSTOP)
    while not recorded.lines._lost:
        recorded.note("said", "x" * 1000)
        recorded.lines.flush(service)
    os.kill(service._process.pid, signal.SIGCONT)
    while recorded.lines._lost:
        service.flush()
        recorded.lines.flush(service)
    recorded.note("last", {})
    recorded.finish(service)
    service.close()
    gap, last = lines(tmp_path / "journal-agent-1.jsonl")[-2:]
    assert (gap["note"], gap["with"], last["note"]) == ("gap", {"lines": 1}, "last")


@pytest.fixture
def stalled(tmp_path, monkeypatch, capfd):
    """Return a stopped log service with a full pipe, and a journal."""
    monkeypatch.setattr(appended_lines, "MOST", 10_000)
    monkeypatch.setattr(log_client, "MOST", 1000)
    service, recorded = LogServiceClient(), Journal(tmp_path, "1")
    os.kill(service._process.pid, signal.SIGSTOP)
    while not service._unsaid:
        service.say("x" * 1000)
    yield service, recorded
    service._process.kill()  # if the test has not come to its end


@pytest.mark.starts
def test_at_the_end_it_has_all_that_is_kept_and_counts_what_is_lost(tmp_path, stalled):
    service, recorded = stalled
    noted = 0
    while not recorded.lines._lost:
        recorded.note("said", "x" * 1000)
        noted += 1
        recorded.lines.flush(service)
    os.kill(service._process.pid, signal.SIGCONT)
    recorded.finish(service)
    service.close()
    *said, gap = lines(tmp_path / "journal-agent-1.jsonl")
    assert [line["note"] for line in said] == ["said"] * (noted - 1)
    assert (gap["note"], gap["with"]) == ("gap", {"lines": 1})


@pytest.mark.starts
def test_the_successor_of_a_service_that_accepts_nothing_gets_the_lines(tmp_path, stalled):
    service, recorded = stalled
    os.kill(service._process.pid, signal.SIGKILL)
    service._socket.setblocking(True)
    while not service.lost:
        service.receive()
    recorded.note("said", "x")
    recorded.lines.flush(service)
    successor = service.successor()
    service.close()
    recorded.finish(successor)
    successor.close()
    assert [line["note"] for line in lines(tmp_path / "journal-agent-1.jsonl")] == ["said"]


# Every event and effect that there is


@functools.cache
def anything(hint):
    """Return a strategy for values of a type, edge cases included."""
    if hint is float:
        # -0.0 is 0.0, but is written in another way.
        return st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0)
    if hint is int:
        return st.integers(-(2**63), 2**63 - 1)
    if hint is str:
        return st.text(max_size=5) | st.just(OLD_NAME)
    if dataclasses.is_dataclass(hint) or isinstance(hint, type(msgspec.Struct)):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{name: anything(each) for name, each in hints.items()})
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    args = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and args[-1] is ...:
        return st.lists(anything(args[0]), max_size=2).map(tuple)
    if typing.get_origin(hint) is dict:
        return st.dictionaries(*map(anything, args), max_size=2)
    if typing.get_origin(hint) is tuple:
        return st.tuples(*map(anything, args))
    if args:
        return st.one_of(*map(anything, args))
    return st.from_type(hint)


@pytest.mark.parametrize("kind", EVENTS.values(), ids=lambda kind: kind.__name__)
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_every_event(kind, data):
    event = data.draw(anything(kind))
    assert event_of(json.loads(packing.to_json(journal.entry("event", event)))) == event


@pytest.mark.parametrize("kind", typing.get_args(Effect), ids=lambda kind: kind.__name__)
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_every_effect(kind, data):
    """The plain forms of two effects are equal exactly if the effects are."""
    one, other = data.draw(anything(kind)), data.draw(anything(kind))
    assert (plain(one) == plain(other)) == (one == other)
