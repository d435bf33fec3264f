"""The facts of a job, as files that are only appended to."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_journal import OLD_NAME, anything

from hpclaunch.core.protocol.facts import (
    Category,
    HeadAwaited,
    HeadChanged,
    NodeHeard,
    NodeLost,
    RoundEnded,
    RoundShares,
    SeatUse,
)
from hpclaunch.core.protocol.values import replace
from hpclaunch.observe.ledger import ledger_of
from hpclaunch.system.logs import fact_files
from hpclaunch.system.logs.fact_files import KINDS, FactFile
from hpclaunch.system.logs.log_client import LogServiceClient
from hpclaunch.worker import private_files


def written(file):
    """Return the lines that a log service would write."""
    return b"".join(file.lines._waiting.splitlines(keepends=True))


def kept(directory, label, host, *facts, incarnation="a"):
    service, file = LogServiceClient(), FactFile(directory, label, "71.0", host, incarnation)
    for fact in facts:
        file.record(fact, time.time())
        file.lines.flush(service)
    file.lines.finish(service)
    service.close()


@pytest.mark.starts
def test_the_facts_of_each_start_of_an_agent(tmp_path):
    kept(tmp_path, "0", "n1", NodeLost("n2", f"no {OLD_NAME}"))
    kept(tmp_path, "1", "n2", HeadAwaited("n2", "n1", 10.0, ""))
    kept(tmp_path, "0", "n1", NodeHeard("n2"), incarnation="b")
    found, unknown = fact_files.read(tmp_path)
    assert [(run.host, [fact for _, fact in run.facts]) for run in found] == [
        ("n2", [HeadAwaited("n2", "n1", 10.0, "")]),
        ("n1", [NodeLost("n2", f"no {OLD_NAME}")]),
        ("n1", [NodeHeard("n2")]),
    ]
    assert {run.launch for run in found} == {"71.0"}
    assert unknown == []
    assert (tmp_path / "facts.jsonl").stat().st_mode & 0o777 == 0o600
    title, first, _, last = (tmp_path / "facts.jsonl").read_text().splitlines()
    assert json.loads(title)["format"] == fact_files.FORMAT
    assert json.loads(first)["fact"] == "NodeLost"
    assert json.loads(last) == {"time": found[-1].facts[0][0], "fact": "NodeHeard", "host": "n2"}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_every_fact(tmp_path_factory, kind, data):
    fact, directory = data.draw(anything(kind)), tmp_path_factory.mktemp("logs")
    file = FactFile(directory, "0", "71.0", "n1", "a")
    file.record(fact, 1.7e9)
    path = directory / "facts.jsonl"
    path.touch(0o600)
    path.write_bytes(written(file))
    ((run,), _) = fact_files.read(directory)
    assert run.facts == [(1.7e9, fact)]


def test_lines_that_are_cut_off_or_make_no_sense_are_left_out(tmp_path):
    file = FactFile(tmp_path, "0", "71.0", "n1", "a")
    file.record(NodeHeard("n2"), time.time())
    title, line = written(file).splitlines(keepends=True)
    path = tmp_path / "facts.jsonl"
    path.touch(0o600)
    bad = [b'{"time":1,"fact":"Record"}', b'{"fact":"NodeHeard"}', b'"format"', b"[1]", b"\xff"]
    older = title.replace(b'"format":3', b'"format":2')
    bad += [re.sub(rb'"time":[^,]*', b'"time":' + time, line) for time in (b"null", b'"1"')]
    whole = [title, line, line[:20], b"\n", b"\n".join(bad), b"\n", line, older, line, line[:-4]]
    path.write_bytes(b"".join(whole))
    ((run,), unknown) = fact_files.read(tmp_path)
    assert [fact for _, fact in run.facts] == [NodeHeard("n2")] * 2
    assert unknown == []
    path.write_bytes(older + line)
    assert fact_files.read(tmp_path) == ([], ["facts.jsonl"])


class FullDisk:
    """A log service that loses all lines until `has_room`, and reports how many after the next."""

    def __init__(self):
        self.wanting, self.has_room = False, False
        self.lost, self.unwritten, self.text = 0, Counter(), ""

    def append(self, directory, name, text, *, is_last=False):
        if self.has_room:
            self.text += text
            self.unwritten[name], self.lost = self.lost, 0
        else:
            self.lost += text.count("\n")
        return True


def test_facts_after_lost_lines_are_those_of_the_same_run(tmp_path):
    disk, file = FullDisk(), FactFile(tmp_path, "0", "71.0", "n1", "a")
    # The title is lost with n2, and repeated after n3; n5 is lost.
    for host in ("n2", "n3", "n4", "n5", "n6", "n7"):
        disk.has_room = host not in ("n2", "n5")
        file.record(NodeHeard(host), 1.7e9)
        file.lines.flush(disk)
    (run,) = fact_files.of_lines(disk.text)
    assert (run.launch, run.host, run.incarnation) == ("71.0", "n1", "a")
    assert [fact.host for _, fact in run.facts] == ["n4", "n6", "n7"]
    lost = [json.loads(line).get("lost") for line in disk.text.splitlines()]
    assert list(filter(None, lost)) == [2, 1]


def test_what_is_no_file_of_ours_is_left_out(tmp_path):
    (tmp_path / "facts.jsonl").mkdir()
    os.symlink("/dev/zero", tmp_path / "facts-agent-1.jsonl")
    assert fact_files.read(tmp_path) == ([], ["facts-agent-1.jsonl", "facts.jsonl"])


def test_the_lines_of_a_launch_in_spite_of_what_cannot_be_read(tmp_path):
    """A directory in place of a file, one that is too large, and lines that are no objects."""
    (tmp_path / "facts-agent-1.jsonl").mkdir()
    with (tmp_path / "facts-agent-2.jsonl").open("wb") as f:
        os.fchmod(f.fileno(), 0o600)
        f.truncate(private_files.MOST + 1)
    file = FactFile(tmp_path, "0", "71.0", "n1", "a")
    file.record(NodeHeard("n2"), 1.7e9)
    title, line = written(file).splitlines(keepends=True)
    path = tmp_path / "facts.jsonl"
    path.touch(0o600)
    path.write_bytes(b"".join([b"17\n", title, b'null\n[1]\n"format"\n\xff\n', line]))
    text = fact_files.lines_of(tmp_path, "71.0", ["NodeHeard"])
    (run,) = fact_files.of_lines(text)
    assert run.facts == [(1.7e9, NodeHeard("n2"))]


def test_the_lines_of_two_weeks_are_not_too_many(tmp_path):
    """Only the first and the last SeatUse of those that say the same are there."""
    nodes = {Category.UNKNOWN: ",".join(f"node-{2 * i:04}" for i in range(64))}
    file, lines = FactFile(tmp_path, "0", "71.0", "n1", "a"), []
    file.lines.add = lines.append
    before, after = (
        SeatUse(0, {Category.UNKNOWN: 512.0}, number, nodes=nodes, are_gpus=True)
        for number in (0, 1)
    )
    recorded = [(1.7e9, before)]
    for i in range(1, 5000):
        last = RoundEnded(0, -1.0, 0.0, (), shares=RoundShares(300.0 * i, {}))
        recorded.append((1.7e9 + 300 * i, replace(before, last=last)))
    recorded += [(1.71e9, RoundEnded(0, 0.0, 0.0, ())), (1.71e9, after)]
    for at, fact in recorded:
        file.record(fact, at)
    path = tmp_path / "facts.jsonl"
    path.touch(0o600)
    path.write_bytes(b"".join(lines))
    assert path.stat().st_size > fact_files.MOST
    (run,) = fact_files.of_lines(fact_files.lines_of(tmp_path, "71.0", ["SeatUse", "RoundEnded"]))
    assert run.facts == recorded[:2] + recorded[-3:]
    assert ledger_of([run.facts]) == ledger_of([recorded])


def test_without_a_directory_there_is_none():
    file = FactFile(None, "0", "71.0", "n1", "a")
    file.record(HeadChanged("n1", "n2", 1, -10.0), 1.7e9)
    file.lines.flush(None)
    file.lines.finish(None)
