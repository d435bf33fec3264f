"""The workers' output, merged by time from the files of log directories."""

from __future__ import annotations

import math
import os
import tracemalloc

import pytest

from hpclaunch.system.logs import merged_output
from hpclaunch.system.logs.merged_output import JobOutput, LineFilter


class Launch:
    """A log directory that a test fills as workers and log services do."""

    def __init__(self, directory, name="71.0"):
        self.path, self.name = directory / name, name

    def file(self, number, name):
        path = self.path / f"round-{number}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def add_to_index(self, number, agent, line):
        with self.file(number, f"index-agent-{agent}.txt").open("a") as f:
            f.write(f"{line}\n")

    def begin(self, number, agent, at):
        header = f'{{"format": 2, "launch": "{self.name}", "host": "n{agent + 1}"'
        self.add_to_index(number, agent, f"{at:.3f} begin {header}}}")

    def write(self, number, agent, rank, text, at=None, lasted=0.0, kind="out"):
        """Write output of a worker, and its time if the log service has recorded it."""
        file = self.file(number, f"rank-{rank}.{kind}")
        begin = file.stat().st_size if file.exists() else 0
        with file.open("a") as f:
            f.write(text)
        if at is not None:
            grown = f"{file.name} {begin} {len(text.encode())}"
            self.add_to_index(number, agent, f"{at:.3f} {lasted:.3f} {grown}")


@pytest.fixture
def launch(tmp_path):
    return Launch(tmp_path)


def lines(*launches, final=True, **wanted):
    output = JobOutput(LineFilter(**wanted))
    output.look([launch.path for launch in launches])
    return list(output.lines(final=final))


def words(found):
    return [line.text.decode() for line in found]


def two_nodes(launch):
    for agent in (0, 1):
        launch.begin(0, agent, 100)
    launch.write(0, 0, 0, "a\n", 101)
    launch.write(0, 1, 1, "b\n", 102)
    launch.write(0, 0, 0, "c\n", 103, kind="err")
    launch.write(0, 1, 1, "d\n", 104)
    launch.file(0, "rank-1.err").touch()


def test_lines_of_two_nodes_by_time(launch):
    two_nodes(launch)
    found = lines(launch)
    assert [(line.time, line.rank, line.text) for line in found] == [
        (101.0, 0, b"a"),
        (102.0, 1, b"b"),
        (103.0, 0, b"c"),
        (104.0, 1, b"d"),
    ]
    assert {line.begun.host for line in found if line.rank == 1} == {"n2"}


def test_a_file_of_both_streams_counts_as_standard_error(launch):
    launch.begin(0, 0, 100)
    launch.write(0, 0, 0, "both\n", 101)
    launch.write(0, 0, 1, "out\n", 102)
    launch.file(0, "rank-1.err").touch()
    assert words(lines(launch, errors_only=True)) == ["both"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"ranks": frozenset({1, 7})}, "bd"),
        ({"node": "n1"}, "ac"),
        ({"errors_only": True}, "c"),
        ({"since": 102.5}, "cd"),
        ({"since": 102.5, "node": "n2"}, "d"),
        ({"since": 1000.0}, ""),
    ],
)
def test_those_that_are_wanted(launch, wanted, expected):
    two_nodes(launch)
    for file in launch.path.rglob("rank-*"):
        os.utime(file, (104, 104))
    assert "".join(words(lines(launch, **wanted))) == expected


def test_rounds_and_runs_follow_each_other(tmp_path):
    first, second = Launch(tmp_path), Launch(tmp_path, "71.0.r1")
    for launch, number, at in ((second, 10, 500), (first, 10, 300), (first, 9, 200)):
        launch.begin(number, 0, at)
        launch.write(number, 0, 0, f"{launch.name} {number}\n", at + 1)
    assert words(lines(second, first)) == ["71.0 9", "71.0 10", "71.0.r1 10"]


def test_what_came_within_a_second_is_spread_over_it(launch):
    launch.begin(0, 0, 100)
    launch.write(0, 0, 0, "a1\na2\na3\na4\n", 102, lasted=1.0)
    launch.write(0, 0, 1, "b1\nb2\n", 101.6, lasted=0.0)
    assert words(lines(launch)) == ["a1", "a2", "a3", "b1", "b2", "a4"]


def test_a_line_that_came_in_pieces(launch):
    launch.begin(0, 0, 100)
    for piece, at in (("one ", 101), ("two\nth", 102), ("ree", 103)):
        launch.write(0, 0, 0, piece, at)
    assert words(lines(launch)) == ["one two", "three"]


def test_of_a_line_that_is_written_over_the_last_state_is_shown(launch):
    launch.write(0, 0, 0, "0%\r50%\r100%\nend\r\n\r\n")
    assert words(lines(launch)) == ["100%", "end", ""]


def test_without_an_index_by_ranks(launch):
    for rank in (10, 9):
        launch.write(0, 0, rank, f"{rank}\n")
        launch.write(0, 0, rank, f"{rank} err", kind="err")
    found = lines(launch)
    assert words(found) == ["9", "9 err", "10", "10 err"]
    assert not any(line.dated or line.begun for line in found)


def test_what_an_index_does_not_cover(launch):
    """Such output is before the index, in a gap, or after its end: its agent was killed."""
    launch.write(0, 0, 0, "before\n")
    launch.begin(0, 0, 100)
    launch.write(0, 0, 0, "one\n", 101)
    launch.write(0, 0, 0, "gap\n")
    launch.write(0, 0, 1, "other\n", 102)
    launch.write(0, 0, 0, "two\n", 103)
    launch.write(0, 0, 0, "after\n")
    launch.add_to_index(0, 0, "104.0 0.0 rank-0")  # torn
    found = lines(launch)
    assert words(found) == ["before", "one", "other", "gap", "two", "after"]
    assert (found[-1].dated, found[-1].rank) == (True, 0)


def test_a_line_of_the_index_that_is_there_twice(launch):
    launch.begin(0, 0, 100)
    launch.write(0, 0, 0, "one\n", 101)
    launch.add_to_index(0, 0, "102.000 0.000 rank-0.out 0 4")
    assert words(lines(launch)) == ["one"]


def test_since_where_no_index_covers_it(launch, monkeypatch):
    """A file that has changed since then shows its end; another one shows nothing."""
    monkeypatch.setattr(merged_output, "UNDATED", 6)
    launch.write(0, 0, 0, "old\nnew\n")
    launch.write(0, 0, 1, "old\n")
    for rank, at in ((0, 1000), (1, 10)):
        os.utime(launch.file(0, f"rank-{rank}.out"), (at, at))
    assert words(lines(launch, since=500.0)) == ["d", "new"]


def test_since_the_end_of_an_index(launch):
    """Output that the index dates earlier is left out."""
    launch.begin(0, 0, 100)
    launch.write(0, 0, 0, "one\n", 101)
    launch.write(0, 0, 0, "two\n")
    assert words(lines(launch, since=500.0)) == ["two"]


def test_since_in_a_long_index(launch):
    launch.begin(0, 0, 100)
    for second in range(2000):
        launch.write(0, 0, second % 3, f"{second}\n", 101 + second)
    assert words(lines(launch, since=2000.5)) == [str(n) for n in range(1900, 2000)]


def test_what_is_new(launch):
    launch.begin(0, 0, 100)
    launch.write(0, 0, 0, "one\ntw", 101)
    output = JobOutput(LineFilter())

    def new(*, final=False):
        output.look([launch.path])
        return words(output.lines(final=final))

    assert new() == ["one"]
    assert new() == []
    launch.write(0, 0, 0, "o\n", 102)
    launch.begin(0, 1, 101)
    launch.write(0, 1, 1, "of another agent\n", 103)
    assert new() == ["two", "of another agent"]
    launch.write(0, 0, 0, "the end of round 0")
    assert new() == []
    launch.begin(1, 0, 110)
    launch.write(1, 0, 0, "of round 1\n", 111)
    assert new() == ["of round 1", "the end of round 0"]
    launch.write(1, 0, 0, "last\n")
    assert new(final=True) == ["last"]
    assert (output.ranks, output.nodes) == ({0, 1}, {"n1", "n2"})


def test_a_round_that_is_about_to_begin_is_followed(launch):
    """The directory and the files of a round exist before its index."""
    launch.begin(0, 0, 100)
    launch.write(0, 0, 0, "of round 0\n", 101)
    launch.file(2, "rank-0.out").touch()
    output = JobOutput(LineFilter())
    output.look([launch.path])
    assert words(output.lines(final=False)) == ["of round 0"]
    launch.begin(2, 0, 110)
    launch.write(2, 0, 0, "of round 2\n", 111)
    output.look([launch.path])
    assert words(output.lines(final=False)) == ["of round 2"]


def test_a_launch_in_the_directory_of_an_earlier_one_is_followed(launch):
    for number in (0, 1):
        launch.begin(number, 0, 100 + 10 * number)
        launch.write(number, 0, 0, f"old {number}\n", 101 + 10 * number)
    launch.begin(0, 0, 200)
    launch.write(0, 0, 0, "new\n", 201)
    output = JobOutput(LineFilter())
    output.look([launch.path])
    assert words(output.lines(final=False)) == ["old 0", "old 1", "new"]
    launch.begin(1, 0, 201)
    launch.write(1, 0, 0, "new 1\n", 201)
    output.look([launch.path])
    assert words(output.lines(final=False)) == ["new 1"]
    output.look([launch.path])
    assert words(output.lines(final=False)) == []
    launch.begin(0, 0, 201.5)  # and a third one
    launch.write(0, 0, 0, "newer\n", 202)
    output.look([launch.path])
    assert words(output.lines(final=False)) == ["newer"]


def test_a_file_that_was_emptied_while_it_is_followed(launch):
    launch.begin(0, 0, 100)
    launch.write(0, 0, 0, "one\ntwo\n", 101)
    output = JobOutput(LineFilter())
    output.look([launch.path])
    assert words(output.lines(final=False)) == ["one", "two"]
    os.truncate(launch.file(0, "rank-0.out"), 0)
    launch.add_to_index(0, 0, "103.000 0.000 rank-0.out 0 0")
    launch.write(0, 0, 0, "three, which is longer\n", 104)
    assert words(output.lines(final=True)) == ["three, which is longer"]


def test_a_file_that_was_emptied_before_it_is_read(launch):
    """Each line appears once, with the time at which it arrived."""
    launch.begin(0, 0, 100)
    for at, text in ((101, "one\ntwo\n"), (105, "three\n"), (109, "four, which is longer\n")):
        file = launch.file(0, "rank-0.out")
        if file.exists():
            os.truncate(file, 0)
            launch.add_to_index(0, 0, f"{at - 1:.3f} 0.000 rank-0.out 0 0")
        launch.write(0, 0, 0, text, at)
    for since in (-math.inf, 102.0, 108.5):
        found = lines(launch, since=since)
        assert [(line.time, line.text) for line in found] == [(109.0, b"four, which is longer")]


def test_a_file_that_is_removed_just_when_it_is_looked_at(launch, monkeypatch):
    launch.write(0, 0, 0, "one\n")
    file, stat = launch.file(0, "rank-0.out"), os.stat

    def remove_after(path, **how):
        found = stat(path, **how)
        if path == file:
            file.unlink()
        return found

    monkeypatch.setattr(os, "stat", remove_after)
    assert lines(launch) == []


def test_an_unfinished_line_of_a_file_that_was_emptied(launch):
    launch.begin(0, 0, 100)
    launch.write(0, 0, 0, "one\ntw", 101)
    output = JobOutput(LineFilter())
    output.look([launch.path])
    assert words(output.lines(final=False)) == ["one"]
    os.truncate(launch.file(0, "rank-0.out"), 0)
    launch.add_to_index(0, 0, "103.000 0.000 rank-0.out 0 0")
    launch.write(0, 0, 0, "three\n", 104)
    assert words(output.lines(final=True)) == ["three"]


@pytest.mark.parametrize(
    "line",
    [
        *(f"102.0 1.0 rank-0.out {n}" for n in ("2 0", f"{10**30} 1", f"2 {10**400}")),
        *(f"102.0 1.0 rank-0.out {n}" for n in ("2 -1", "-9 12", "1 2 0")),
    ],
)
def test_a_line_of_the_index_about_no_possible_bytes(launch, line):
    launch.begin(0, 0, 100)
    launch.write(0, 0, 0, "a\n", 101)
    launch.add_to_index(0, 0, line)
    launch.write(0, 0, 0, "b\n", 103)
    assert words(lines(launch)) == ["a", "b"]


def test_large_files_are_not_held_in_memory(launch):
    launch.begin(0, 0, 100)
    text = ("x" * 999 + "\n") * 1000
    for second in range(4):
        for rank in range(4):
            launch.write(0, 0, rank, text, 101 + second, lasted=1.0)
    output = JobOutput(LineFilter())
    output.look([launch.path])
    tracemalloc.start()
    number = sum(1 for _ in output.lines(final=True))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert number == 16 * 1000
    assert peak < 4 << 20
