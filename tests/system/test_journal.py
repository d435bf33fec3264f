"""The journal: everything that is new, and no harm from a disk that is full."""

import json
import os

from hpclaunch.core.protocol.events import CheckpointChosen, Received, Started, Tick
from hpclaunch.core.protocol.messages import Order
from hpclaunch.core.protocol.model import Goal
from hpclaunch.system.logs.journal import Journal


def order(serial, goal=Goal.WAIT):
    return Received(0, Order(1, serial, "a1", goal, 0))


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_is_new_and_nothing_else(tmp_path):
    journal = Journal(tmp_path, "2")
    for event in (Started(), Tick(), order(1), order(2), order(3, Goal.STOP), order(4, Goal.STOP)):
        journal.record("event", 1.5, event)
    journal.note("started", 2.0, {"pid": 7})
    path = tmp_path / "journal-agent-2.jsonl"
    told = lines(path)
    assert [e.get("event") or e.get("note") for e in told] == [
        "Started",
        "Received",
        "Received",
        "started",
    ]
    assert [e["with"]["message"]["goal"] for e in told[1:3]] == ["wait", "stop"]
    assert [e["now"] for e in told] == [1.5, 1.5, 1.5, 2.0]
    assert path.stat().st_mode & 0o777 == 0o600


def test_names_of_files_in_another_encoding(tmp_path):
    path = os.fsdecode(b"/points/gr\xf6\xdfe.pt")
    Journal(tmp_path, "0").record("event", 1.0, CheckpointChosen(path))
    (told,) = lines(tmp_path / "journal.jsonl")
    assert told["with"]["path"] == path


def test_another_run_in_the_same_directory_goes_on_in_the_same_file(tmp_path):
    for _ in range(2):
        Journal(tmp_path, "0").record("event", 1.0, Started())
    assert len(lines(tmp_path / "journal.jsonl")) == 2


def test_a_full_disk_is_said_once(tmp_path):
    (tmp_path / "journal.jsonl").symlink_to("/dev/full")
    journal = Journal(tmp_path, "0")
    for _ in range(3):
        journal.record("event", 1.0, Started())
    assert journal.complaint() == f"the journal ends here: {os.strerror(28)}"
    assert journal.complaint() == ""


def test_without_a_directory_there_is_none():
    journal = Journal(None, "0")
    journal.record("event", 1.0, Started())
    assert journal.complaint() == ""
