"""What one agent holds open to show its workers' output, round after round."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpclaunch.agent.output import Output
from hpclaunch.core.placement.streams import Streams
from hpclaunch.core.protocol.model import Assignment
from hpclaunch.system.processes.fork_server_client import Worker
from surroundings import full_disk

NPROC = 2


class Stalled:
    """A console that takes nothing, until it is given room."""

    room = 0
    wanting = False

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


@pytest.fixture
def output():
    output = Output(
        Streams(stdout_filters=("loss",), stderr_filters=("loss",)), role="", label="0", host="n1"
    )
    yield output
    output.close()


def begin(output: Output, number: int, directory: Path) -> list[Path]:
    """The files to which the workers of a round write."""
    part = Assignment(number, 0, 0, NPROC, NPROC, 0, NPROC, 0, 1, "2", "", "", 0, False, "")
    here = directory / f"round-{number}"
    here.mkdir()
    workers = [
        Worker(rank, [], {}, str(here / f"rank-{rank}.out"), str(here / f"rank-{rank}.err"))
        for rank in range(NPROC)
    ]
    output.follow(part, workers, here)
    return [Path(file) for w in workers for file in (w.out, w.err)]


def duplicates(directory: Path, number: int) -> list[str]:
    paths = sorted((directory / f"round-{number}").glob("filtered-agent-0.*"))
    return [path.read_text() for path in paths]


def test_a_round_leaves_nothing_open(output, tmp_path, capfd):
    held = []
    for number in range(8):
        for path in begin(output, number, tmp_path):
            path.write_text(f"loss {path.name}\n")
        output.mirror.finish(1.0)
        held.append(len(os.listdir("/proc/self/fd")))
    assert len(set(held)) == 1, held
    for number in range(8):
        errors, out = (text.splitlines() for text in duplicates(tmp_path, number))
        assert sorted(errors) == ["[0]:loss rank-0.err", "[1]:loss rank-1.err"]
        assert sorted(out) == ["[0]:loss rank-0.out", "[1]:loss rank-1.out"]


def test_what_a_stalled_console_holds_up_is_duplicated_once_it_goes_on(output, tmp_path):
    output.out = output.err = stalled = Stalled()
    for path in begin(output, 0, tmp_path):
        path.write_text(f"loss {path.name}\n")
    output.mirror.finish(1.0)
    begin(output, 1, tmp_path)
    assert duplicates(tmp_path, 0) == ["", ""]
    stalled.room = 1 << 20
    output.mirror.finish(2.0)
    assert [text.count("loss") for text in duplicates(tmp_path, 0)] == [NPROC, NPROC]
    assert stalled.data.count(b"loss") == 2 * NPROC
    before = len(os.listdir("/proc/self/fd"))
    begin(output, 2, tmp_path)  # and with it, what is left of the first round
    assert len(os.listdir("/proc/self/fd")) == before - 2 * NPROC - 2


def test_why_nothing_more_is_duplicated_is_told_in_the_next_round_too(output, tmp_path, capfd):
    (tmp_path / "round-0").mkdir()
    here = tmp_path / "round-0"
    part = Assignment(0, 0, 0, 1, 1, 0, 1, 0, 1, "1", "", "", 0, False, "")
    path = here / "rank-0.out"
    output.follow(part, [Worker(0, [], {}, str(path), str(here / "rank-0.err"))], here)
    path.write_text("loss")  # a line without an end, which is passed on when its round is forgotten
    output.mirror.wake(1.0)
    with full_disk():
        begin(output, 1, tmp_path)
    (complaint,) = output.complaints()
    assert complaint.startswith(f"no more duplicates of lines in {here}/filtered-agent-0.out: ")
    assert output.complaints() == []
