"""The journal: all that the core was told and answered, and no harm from a disk that is full."""

import contextlib
import dataclasses
import enum
import errno
import json
import math
import os
import resource
import signal
import socket
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpclaunch.core.control import Control
from hpclaunch.core.protocol.events import CheckpointChosen, Received, Started, StoreListening, Tick
from hpclaunch.core.protocol.messages import Order
from hpclaunch.core.protocol.model import Goal, Job, Place
from hpclaunch.system.logs.journal import journal as agents_end
from hpclaunch.system.logs.journal import recorder, records, snapshot, writer
from hpclaunch.system.logs.journal.journal import Journal
from hpclaunch.system.logs.journal.recorder import Recorder
from hpclaunch.system.logs.journal.records import JournalError
from hpclaunch.system.logs.journal.replaying import CutOff, Decision, NewCore, replay
from hpclaunch.system.logs.journal.writer import BEATS, NEEDED, NEWS, STATE, Holding
from hpclaunch.system.shared import packing

PLACES = (Place(0, 0, "n1"), Place(1, 1, "n2"))
MADE = {"job": Job(PLACES), "index": 1, "nproc": 2, "address": "10.0.0.2", "incarnation": "a1"}
OLD_NAME = os.fsdecode(b"/points/gr\xf6\xdfe.pt")  # in Latin-1


def order(serial, goal=Goal.WAIT):
    return Received(0, Order(0, serial, "a1", goal, 0))


STORY = [Started(), StoreListening(4000), *map(order, range(1, 5)), Tick(), Tick(), order(5)]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def tell(journal, *story, made=MADE, now=1.0):
    """What an agent would."""
    core = Control(**made)
    journal.began(made)
    for event in story:
        now += 0.5
        journal.event(event, now, core)
        journal.effects(core.handle(event, now))
        journal.flush()


def recorded(*story, **more):
    """The lines for the writer, without their marks."""
    written = []
    tell(_Recorded(written), *story, **more)
    return [line[1:] for line in written]


class _Recorded(Recorder):
    def __init__(self, written):
        super().__init__(written.append, clock=lambda: 1e9)

    def began(self, made):
        super().began(made, 0.0)


def steps(told):
    return [each for each in replay(told) if isinstance(each, Decision)]


# What the file has


@pytest.mark.starts
def test_it_begins_with_the_core_and_has_every_event_and_effect(tmp_path):
    journal = Journal(tmp_path, "2")
    tell(journal, *STORY)
    journal.note("started", {"pid": 7})
    journal.close()
    path = tmp_path / "journal-agent-2.jsonl"
    told = lines(path)
    assert told[0]["note"] == "core"
    assert told[0]["with"]["made"]["job"]["places"][1]["host"] == "n2"
    news = [e["event"] for e in told if "event" in e]
    assert news == ["Started", "StoreListening", "Received"]
    assert [e["of"] for e in told if e.get("effect") == "Send"] == ["Report"] * 3
    assert told[-1]["note"] == "started"
    assert path.stat().st_mode & 0o777 == 0o600
    assert journal.complaint() == ""


def test_an_order_that_says_nothing_new_is_a_beat():
    told = [json.loads(line) for line in recorded(Started(), *map(order, range(1, 4)))]
    (beats,) = [e["beats"] for e in told if "beats" in e and len(e["beats"][0]) == 4][-1:]
    ((_, checksum, sender, changes),) = beats
    assert (sender, changes) == (0, {"serial": 3})
    assert checksum


@pytest.mark.starts
def test_names_of_files_in_another_encoding(tmp_path):
    journal = Journal(tmp_path, "0")
    tell(journal, Started(), CheckpointChosen(OLD_NAME), made=MADE | {"index": 0})
    journal.close()
    (told,) = [e for e in lines(tmp_path / "journal.jsonl") if e.get("event") == "CheckpointChosen"]
    assert told["with"]["path"] == OLD_NAME
    with (tmp_path / "journal.jsonl").open("rb") as file:
        assert steps(file)[1].event == CheckpointChosen(OLD_NAME)


@pytest.mark.starts
def test_another_run_in_the_same_directory_goes_on_in_the_same_file(tmp_path):
    for _ in range(2):
        journal = Journal(tmp_path, "0")
        tell(journal, Started())
        journal.close()
    with (tmp_path / "journal.jsonl").open("rb") as file:
        assert [type(e) for e in replay(file)] == [NewCore, Decision] * 2


@pytest.mark.starts
def test_a_run_after_one_that_was_cut_off_begins_with_a_line_of_its_own(tmp_path):
    (tmp_path / "journal.jsonl").write_bytes(recorded(Started())[0] + b'{"time":1,"no')
    journal = Journal(tmp_path, "0")
    tell(journal, Started())
    journal.close()
    with (tmp_path / "journal.jsonl").open("rb") as file:
        assert [type(e) for e in replay(file)] == [NewCore, CutOff, NewCore, Decision]


# What becomes of it


@pytest.mark.starts
def test_a_full_disk_is_said_once(tmp_path):
    journal = Journal(tmp_path, "0")
    resource.prlimit(journal._writer._process.pid, resource.RLIMIT_FSIZE, (100, 100))
    tell(journal, *STORY)
    journal.close()
    assert journal.complaint() == f"the journal ends here: {os.strerror(errno.EFBIG)}"
    assert journal.complaint() == ""


def end_writer(journal):
    journal._writer._process.kill()
    journal._writer._process.wait()


@pytest.mark.starts
def test_a_writer_that_was_killed_is_replaced(tmp_path):
    """What comes after the gap begins with a state."""
    ended = []
    journal = Journal(tmp_path, "0", lambda writer: not ended.append(writer))
    core, now = Control(**MADE), 1.0
    journal.began(MADE)
    for number in range(4):
        if number in (1, 3):
            end_writer(journal)
            if number == 3:  # as an agent that has nothing to write
                journal.replace_writer()
        now += 0.5
        journal.event(order(number), now, core)
        journal.effects(core.handle(order(number), now))
        journal.flush()
    journal.close()
    assert (len(ended), journal.complaint()) == (2, "")
    with (tmp_path / "journal.jsonl").open("rb") as file:
        decisions = [each for each in replay(file) if isinstance(each, Decision)]
    assert decisions[-1].event == order(3)


@pytest.mark.starts
def test_without_a_successor_of_the_writer_the_journal_ends(tmp_path):
    journal = Journal(tmp_path, "0", lambda _: False)
    tell(journal, Started())
    end_writer(journal)
    tell(journal, *STORY)
    assert journal.complaint() == "the journal ends here: the process that writes it was killed"
    assert not journal.wanting


@pytest.mark.starts
def test_a_writer_that_is_stopped_at_the_end_writes_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(agents_end, "END_LIMIT", 0.1)
    journal = Journal(tmp_path, "0")
    tell(journal, Started())
    process = journal._writer._process
    os.kill(process.pid, signal.SIGSTOP)
    journal.note("last", {})
    journal.close()
    assert process.wait(60) == 0
    assert lines(tmp_path / "journal.jsonl")[-1]["note"] == "last"


def test_without_a_directory_there_is_none():
    journal = Journal(None, "0")
    tell(journal, *STORY)
    journal.note("started", {})
    journal.close()
    assert (journal.complaint(), journal.fileno()) == ("", -1)


@pytest.mark.starts
def test_the_beats_before_the_agent_was_killed_are_there(tmp_path):
    """The writer holds them, and ends by itself."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        ours.close()
        writer._write(theirs, str(tmp_path / "journal.jsonl"))
        os._exit(0)
    theirs.close()
    for line in (b"!news\n", b"=one\n", b"=two\n", b".beat\n", b".half"):
        ours.send(line)
    ours.close()
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "journal.jsonl").read_text() == "news\ntwo\nbeat\n"


@pytest.mark.starts
def test_a_file_system_that_hangs_costs_lines_and_no_time(tmp_path, monkeypatch):
    """What comes after the gap begins with a state."""
    monkeypatch.setattr(agents_end, "MOST", 100_000)
    journal = Journal(tmp_path, "1")
    os.kill(journal._writer._process.pid, signal.SIGSTOP)
    core, now = Control(**MADE), 1.0
    journal.began(MADE)

    def more(count):
        nonlocal now
        for _ in range(count):
            now += 0.5
            event = order(int(now * 2))
            journal.event(event, now, core)
            journal.effects(core.handle(event, now))
            journal.flush()

    while not journal._lost:
        more(100)
    more(100)
    assert len(journal._waiting) < 10_000
    os.kill(journal._writer._process.pid, signal.SIGCONT)
    while journal._lost:
        journal.flush()
    more(3)
    journal.close()
    told = lines(tmp_path / "journal-agent-1.jsonl")
    assert sum("state" in each for each in told) == 1
    with (tmp_path / "journal-agent-1.jsonl").open("rb") as file:
        found = list(replay(file))
    assert [each.resumed for each in found if isinstance(each, NewCore)] == [False, True]
    assert all(each.same for each in found if isinstance(each, Decision))
    assert found[-1].now == now


def test_which_beats_are_written():
    holding, written = Holding(), []
    story = [NEWS + b"1", STATE + b"a", BEATS + b"2"]  # the last news is not long ago
    story += [STATE + b"b", BEATS + b"3", STATE + b"c", BEATS + b"4", STATE + b"d", BEATS + b"5"]
    for line in story:
        written += holding.take(line)
    assert written == [b"1", b"2"]
    assert holding.take(NEWS + b"6") == [b"c", b"4", b"5", b"6"]
    assert holding.take(BEATS + b"7") == [b"7"]
    assert holding.take(NEEDED + b"e") == [b"e"]
    assert holding.rest() == []


def test_a_large_file_is_put_aside(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "MOST", 1000)
    ours, theirs = socket.socketpair()
    with ours:
        for line in (b"!" + b"x" * 2000, b"=state", b".beat", b"!news"):
            ours.send(line + b"\n")
    writer._write(theirs, str(tmp_path / "journal.jsonl"))
    assert (tmp_path / "journal.jsonl").read_text() == "state\nbeat\nnews\n"
    assert (tmp_path / "journal.jsonl.1").stat().st_size == 2001


# There and back: every event and effect that there is


def anything(hint):
    """Values of a type, also in the corners."""
    if hint is float:
        # -0.0 is 0.0, but is written in another way.
        return st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0)
    if hint is int:
        return st.integers(-(2**63), 2**63 - 1)
    if hint is str:
        return st.text(max_size=5) | st.just(OLD_NAME)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{name: anything(each) for name, each in hints.items()})
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    args = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and args[-1] is ...:
        return st.lists(anything(args[0]), max_size=2).map(tuple)
    if typing.get_origin(hint) is tuple:
        return st.tuples(*map(anything, args))
    if args:
        return st.one_of(*map(anything, args))
    return st.from_type(hint)


@pytest.mark.parametrize("kind", records.EVENTS.values(), ids=lambda kind: kind.__name__)
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_every_event(kind, data):
    event = data.draw(anything(kind))
    assert records.event(json.loads(packing.to_json(records.entry("event", event)))) == event


@pytest.mark.parametrize("kind", records.EFFECTS.values(), ids=lambda kind: kind.__name__)
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_every_effect(kind, data):
    """Compared as JSON: two that differ are told apart, and what is equal is the same."""
    one, other = data.draw(anything(kind)), data.draw(anything(kind))
    assert (records.plain("effect", one) == records.plain("effect", other)) == (one == other)
    assert (records.checksum([one]) == records.checksum([other])) == (one == other)


@settings(max_examples=30, deadline=None)
@given(anything(Job))
def test_how_a_core_is_made(job):
    made = json.loads(packing.to_json({"job": job}))
    assert records._convert(made["job"], Job) == job


def test_a_new_event_or_effect_cannot_be_forgotten():
    assert set(records.EVENTS.values()) == set(typing.get_args(records.Event))
    assert set(records.EFFECTS.values()) == set(typing.get_args(records.Effect))
    for kinds in (records.EVENTS, records.EFFECTS):
        holds = [k for k in kinds.values() if records.Message in typing.get_type_hints(k).values()]
        assert all(records._message_field(k) for k in holds)
        assert len(holds) == 1


# States


def test_a_state_is_the_same_core():
    core = Control(**MADE)
    for now, event in enumerate(STORY):
        core.handle(event, float(now))
    frozen = json.loads(packing.to_json(snapshot.freeze(core)))
    again = snapshot.thaw(frozen)
    assert snapshot.freeze(again) == snapshot.freeze(core)
    assert again.member.job is again.job  # one object is one again
    assert again.next_deadline() == core.next_deadline()


def test_a_state_makes_nothing_but_objects_of_the_core():
    for kind in ("os:system", "subprocess:Popen", "hpclaunch.core.control:deque", "builtins:eval"):
        frozen = {"kinds": [[kind, "x"]], "nodes": [[0, 1]], "root": [0]}
        with pytest.raises(JournalError):
            snapshot.thaw(frozen)


@pytest.mark.starts
def test_a_core_with_something_else_ends_the_journal(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "STRETCH", 0.0)
    journal = Journal(tmp_path, "1")
    core = Control(**MADE)
    core.member.surprise = lambda: None
    journal.began(MADE)
    journal.event(Started(), math.inf, core)
    journal.effects([])
    assert journal.complaint() == (
        "the journal ends here: builtins:function in the state of the core"
    )


# Read again


def test_the_same_story_is_the_same():
    found = steps(recorded(*STORY))
    assert [each.event for each in found] == STORY
    assert all(each.same for each in found)
    assert [each.after.phase for each in found][:2] == ["preparing", "idle"]


def test_an_event_that_is_missing_shows():
    told = recorded(*STORY)
    (at,) = [i for i, line in enumerate(told) if b'"StoreListening"' in line]
    found = steps(told[:at] + told[at + 2 :])
    first = next(each for each in found if not each.same)
    assert isinstance(first.event, Received)
    assert [e["with"]["message"]["phase"] for e in first.recorded] != [
        e["with"]["message"]["phase"] for e in first.effects
    ]


def test_an_effect_that_was_another_one_shows():
    told = [line.replace(b'"phase":"idle"', b'"phase":"stuck"') for line in recorded(*STORY)]
    found = steps(told)
    assert [each.same for each in found].index(False) == 1


def test_a_journal_may_be_cut_off_anywhere():
    whole = b"".join(recorded(*STORY))
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole), 7):
        found = list(replay(whole[:end].splitlines(keepends=True)))
        assert all(each.same for each in found if isinstance(each, Decision))
        assert isinstance(found[-1], CutOff) == (whole[end - 1 : end] != b"\n")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is empty"),
        (b"\x7fELF\0\0\n\n", "this is not a journal"),
        (b"[]\n", "this is not a journal"),
        (b'{"time":1.0,"now":1.0,"event":"Started","with":{}}\n', "an older version"),
        (b'{"now":1.0,"note":"core","with":{}}\n', "line 1 is damaged"),
        (b'{"now":1.0,"note":"core","with":{"format":99,"version":"9.0"}}\n', "hpclaunch 9.0"),
    ],
)
def test_what_is_no_journal(data, why):
    with pytest.raises(JournalError, match=why):
        list(replay(data.splitlines(keepends=True)))


def test_a_line_in_the_middle_that_is_damaged():
    told = recorded(*STORY)
    told[3] = b"\0\0\0\n"
    with pytest.raises(JournalError, match="line 4 is damaged"):
        list(replay(told))


@pytest.mark.fuzz
@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_one_wrong_byte_never_does_harm(position, value):
    data = bytearray(b"".join(recorded(*STORY)))
    data[position % len(data)] = value
    with contextlib.suppress(JournalError):
        list(replay(bytes(data).splitlines(keepends=True)))
