"""The index: the times at which the bytes of the workers' files arrived."""

from __future__ import annotations

import os
import stat

import pytest

from hpclaunch.system.logs.index_writer import BURST, REST, IndexWriter
from hpclaunch.system.logs.log_directory import INDEXES, index_of
from hpclaunch.system.logs.output_index import (
    PERIOD,
    FileGrowth,
    IndexBegun,
    parse,
)
from hpclaunch.system.shared.inotify import Inotify
from surroundings import full_disk


class Clock:
    """The loop's clock and the real one, which advance only when a test says so."""

    now, real = 100.0, 5000.0

    def __call__(self):
        return self.real

    def pass_by(self, seconds):
        self.now += seconds
        self.real += seconds


class Followed:
    """A file with its index."""

    def __init__(self, directory):
        self.clock = Clock()
        self.path = directory / "rank-3.out"
        self.path.touch()
        self.file = directory / "index-agent-0.txt"
        self.index = IndexWriter(self.file, launch="71.0", host="n1", clock=self.clock)
        self.index.follow(self.path, self.clock.now)

    def write(self, text, wait=0.0):
        self.clock.pass_by(wait)
        with self.path.open("a") as f:
            f.write(text)
        self.index.wake(self.clock.now)

    def wake_for(self, seconds):
        """Wake the index at each deadline, like the log service."""
        end = self.clock.now + seconds
        while (due := self.index.next_deadline()) <= end:
            self.clock.pass_by(max(0.0, due - self.clock.now))
            self.index.wake(self.clock.now)
        self.clock.pass_by(end - self.clock.now)

    @property
    def lines(self):
        return [parse(line) for line in self.file.read_bytes().splitlines()]

    @property
    def growths(self):
        return [line for line in self.lines if isinstance(line, FileGrowth)]


def no_inotify(*args, **kwargs):
    raise OSError(24, "inotify instance limit reached")


@pytest.fixture(params=["inotify", "without inotify", "without watches"])
def followed(request, tmp_path, monkeypatch):
    if request.param == "without inotify":
        monkeypatch.setattr("hpclaunch.system.shared.inotify._call", no_inotify)
    if request.param == "without watches":
        monkeypatch.setattr(Inotify, "add_watch", no_inotify)
    followed = Followed(tmp_path)
    yield followed
    followed.index.close()


@pytest.fixture
def watched(tmp_path):
    followed = Followed(tmp_path)
    yield followed
    followed.index.close()


def test_all_bytes_are_recorded_in_order(followed):
    assert followed.lines == [IndexBegun(5000.0, "71.0", "n1")]
    assert stat.S_IMODE(followed.file.stat().st_mode) == 0o600
    for _ in range(7):
        followed.write("12345", wait=0.4)
        followed.wake_for(0.3)
    followed.index.finish(followed.clock.now)
    recorded = followed.growths
    assert [growth.begin for growth in recorded] == [
        sum(growth.length for growth in recorded[:n]) for n in range(len(recorded))
    ]
    assert recorded[-1].begin + recorded[-1].length == 35
    assert sorted(recorded, key=lambda growth: growth.until) == recorded
    assert 5000 < recorded[0].since <= recorded[-1].until <= followed.clock.real + 0.001


def test_the_time_is_that_of_the_write(watched):
    watched.write("one\n", wait=50.25)
    watched.wake_for(PERIOD)
    watched.write("two\n", wait=30)
    watched.wake_for(PERIOD)
    recorded = [(g.since, g.until, g.begin, g.length) for g in watched.growths]
    assert recorded == [(5050.25, 5050.25, 0, 4), (5050.25 + 31, 5050.25 + 31, 4, 4)]


@pytest.mark.parametrize("pause", [0.04, 0.14])
def test_a_file_that_grows_all_the_time_costs_a_line_a_second(watched, pause):
    for _ in range(400):
        watched.write("x", wait=0.01)
        watched.wake_for(pause)
    watched.index.finish(watched.clock.now)
    assert len(watched.growths) <= 400 * (pause + 0.01) / PERIOD + BURST + 2
    assert max(g.until - g.since for g in watched.growths) <= PERIOD + REST
    assert sum(g.length for g in watched.growths) == 400


def test_nobody_is_woken_while_nothing_is_written(watched):
    watched.write("one\n")
    watched.wake_for(3 * PERIOD)
    assert watched.index.next_deadline() == float("inf")


def test_a_file_that_the_user_empties(watched):
    watched.write("0123456789")
    watched.wake_for(3 * PERIOD)
    watched.path.write_text("")
    watched.write("abc", wait=5)
    watched.index.finish(watched.clock.now)
    assert [(g.begin, g.length) for g in watched.growths] == [(0, 10), (0, 0), (0, 3)]


def test_a_file_that_the_user_empties_while_the_disk_is_full(watched):
    watched.write("0123456789")
    watched.path.write_text("")
    with full_disk():
        watched.wake_for(3 * PERIOD)
    watched.write("abc", wait=5)
    with full_disk():
        watched.wake_for(3 * PERIOD)
    watched.write("def", wait=5)
    watched.index.finish(watched.clock.now)
    assert [(g.begin, g.length) for g in watched.growths] == [(0, 0), (3, 3)]


def test_what_was_there_before_is_of_no_known_time(tmp_path):
    (tmp_path / "rank-3.out").write_text("of an earlier launch\n")
    followed = Followed(tmp_path)
    followed.write("new\n")
    followed.index.finish(followed.clock.now)
    assert [(g.begin, g.length) for g in followed.growths] == [(21, 4)]
    followed.index.close()


def test_a_full_disk_costs_no_more_than_the_time(watched):
    watched.write("one\n")
    with full_disk():
        watched.wake_for(3 * PERIOD)
        assert len(watched.lines) == 1
    watched.write("two\n", wait=10)
    watched.wake_for(3 * PERIOD)
    assert [(g.begin, g.length) for g in watched.growths] == [(4, 4)]


def test_an_index_begins_once_there_is_room(tmp_path):
    with full_disk():
        followed = Followed(tmp_path)
    followed.write("one\n")
    followed.index.finish(followed.clock.now)
    assert [type(line) for line in followed.lines] == [IndexBegun, FileGrowth]
    followed.index.close()


def test_a_clock_that_is_set_back_does_not_confuse_the_order(watched):
    watched.write("one\n")
    watched.clock.real -= 3600
    watched.write("two\n", wait=2)
    watched.index.finish(watched.clock.now)
    times = [growth.until for growth in watched.growths]
    assert times == sorted(times)


def test_an_index_that_cannot_be_made(tmp_path):
    (tmp_path / "index-agent-0.txt").symlink_to("/nowhere")
    followed = Followed(tmp_path)
    followed.write("one\n")
    followed.index.finish(followed.clock.now)
    followed.index.close()


def test_a_torn_line_spoils_no_other(watched):
    os.truncate(watched.file, watched.file.stat().st_size - 5)
    again = Followed(watched.path.parent)
    again.write("one\n")
    again.index.finish(again.clock.now)
    assert [line for line in again.lines if line is not None] == [
        IndexBegun(5000.0, "71.0", "n1"),
        *again.growths,
    ]
    again.index.close()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"x",
        b"1.0 begin {",
        b'1.0 begin {"format": 99}',
        b"1.0 0.0 rank-0.out 1",
        b"\xff a b",
        b"1e300 0.0 rank-0.out 0 2",  # no clock says so: what shows times would fail
        b"nan 0.0 rank-0.out 0 2",
        b"1.0 0.0 rank-0.out 1 0",
        b"1.0 1e300 rank-0.out 0 2",
        b"1.0 -1.0 rank-0.out 0 2",
    ],
)
def test_what_is_none_of_its_lines(line):
    assert parse(line) is None


def test_names_are_known():
    assert INDEXES.fullmatch(index_of("n1.cluster"))
