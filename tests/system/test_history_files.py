"""The history of an agent, as a file that is only appended to; and stacks, as they are found."""

from __future__ import annotations

import json
import os
import stat
import time

import msgspec
import pytest
from serving import LIMIT

from hpclaunch.core.member.moments import (
    AgentHistory,
    AgentMoment,
    GpusMoment,
    WorkersMoment,
)
from hpclaunch.core.protocol.values import replace
from hpclaunch.system.logs import history_files, stack_files
from hpclaunch.system.logs.log_client import LogServiceClient
from hpclaunch.system.logs.messages import Complaint

GPUS = GpusMoment(2, 0.5, None, 1, 2, 60)
MOMENTS = (
    AgentMoment(10.0, 0, WorkersMoment(0, 2, 0.5, (0,) * 7, 0, 0.0)),
    AgentMoment(20.5, 0, WorkersMoment(0, 2, 9.5, (1, 2, 3, 4, 5, 6, 4), 7, 8.5, 8, 9, 10, GPUS)),
)
HISTORY = AgentHistory("71.0", 3, "n\udcff2", MOMENTS)
NAME = "history-3-20260101T000000.jsonl"


def lines():
    return [history_files.title("71.0", 3, "n\udcff2"), *map(history_files.line, MOMENTS)]


def test_what_was_written_is_read(tmp_path):
    (tmp_path / NAME).write_text("".join(lines()))
    assert history_files.read(tmp_path) == [HISTORY]


def test_a_line_that_is_cut_off_is_left_out(tmp_path):
    one, two, three = lines()
    (tmp_path / NAME).write_text(f"{one}{two}{three[:40]}\n{three}{three[:-9]}")
    assert history_files.read(tmp_path) == [HISTORY]


@pytest.mark.parametrize("text", ["", "{", '{"format":2}\n', "[1]\n"])
def test_what_is_no_history_is_left_out(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    (tmp_path / "history-4-20260101T000000.jsonl").mkdir()
    assert history_files.read(tmp_path) == []


def test_a_moment_of_no_possible_time_is_left_out(tmp_path):
    odd = history_files.line(replace(MOMENTS[0], at=1e300))
    (tmp_path / NAME).write_text("".join([*lines(), odd]))
    assert history_files.read(tmp_path) == [HISTORY]


@pytest.mark.parametrize(
    "damage",
    [
        {"count": 0},
        {"count": 10**12},
        {"first": -1},
        {"elapsed": 1e300},
        {"spent": (1, 2)},
        {"spent": (1, 2, 3, 4, 5, 6, 9)},
        {"memory": 10**40},
        {"steps": -1},
        {"gpus": replace(GPUS, busy=1e300)},
        {"gpus": replace(GPUS, temperature=10**40)},
    ],
    ids=str,
)
def test_a_moment_of_impossible_numbers_is_left_out(tmp_path, damage):
    good = MOMENTS[1]
    odd = replace(good, workers=replace(good.workers, **damage))
    (tmp_path / NAME).write_text("".join([*lines(), json.dumps(msgspec.to_builtins(odd)), "\n"]))
    assert history_files.read(tmp_path) == [HISTORY]


def test_a_title_that_comes_after_lost_lines_is_found(tmp_path):
    title, first, *moments = lines()
    (tmp_path / NAME).write_text("".join([title[:9], "\n", first, title, *moments, title]))
    assert history_files.read(tmp_path) == [HISTORY]


@pytest.mark.starts
def test_the_log_service_appends(tmp_path):
    client = LogServiceClient()
    for line in lines():
        client.append(tmp_path, NAME, line)
    client.close()
    assert history_files.read(tmp_path) == [HISTORY]
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


@pytest.mark.starts
def test_after_a_line_that_is_cut_off_the_next_one_is_whole(tmp_path, capfd):
    one, two, three = lines()
    (tmp_path / NAME).write_text(one + two + three[:20])
    client = LogServiceClient()
    client.append(tmp_path, NAME, three)
    client.close()
    assert history_files.read(tmp_path) == [HISTORY]


@pytest.mark.starts
def test_what_cannot_be_appended_is_reported_once(tmp_path):
    (tmp_path / NAME).symlink_to("elsewhere")
    client = LogServiceClient()
    for line in lines():
        client.append(tmp_path, NAME, line)
    assert client.close() == [Complaint("files", NAME, f"it is a link: {tmp_path / NAME}")]
    assert not (tmp_path / "elsewhere").exists()


def test_stacks_are_those_of_the_rank_at_fault_and_the_first_ones(tmp_path):
    where = tmp_path / "round-3" / "evidence"
    where.mkdir(parents=True)
    for rank in range(20):
        (where / f"rank-{rank}.txt").write_text(f"stack {rank}" + "x" * 100_000)
    (where / "rank-1.native.txt").write_bytes(b"\xff native")
    (where / "rank-1.collectives.json").write_text("{}")
    (tmp_path / "round-4").mkdir()
    (found,) = stack_files.read(tmp_path, [(3, 17), (3, 12), (4, 5)])
    assert (found.round, found.where) == (3, str(where))
    names = [name for name, _ in found.files]
    assert names[:3] == ["rank-12.txt", "rank-17.txt", "rank-0.txt"]
    assert names[3:5] == ["rank-1.native.txt", "rank-1.txt"]
    assert found.files[3][1] == "\ufffd native"
    assert len(found.files) == stack_files.MOST_FILES
    assert max(len(text) for _, text in found.files) == stack_files.MOST_BYTES
    assert abs(found.at - time.time()) < LIMIT


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a user of its own")
def test_another_users_file_is_not_read(tmp_path):
    (tmp_path / NAME).write_text("".join(lines()))
    os.chown(tmp_path / NAME, 65534, 65534)
    os.chown(tmp_path, 0, 0)
    assert history_files.read(tmp_path) == []


def test_the_stacks_of_a_round_are_those_that_can_be_read(tmp_path):
    where = tmp_path / "round-3" / "evidence"
    where.mkdir(parents=True)
    (where / "rank-0.txt").symlink_to("/dev/zero")
    for rank in range(1, stack_files.MOST_FILES + 1):
        (where / f"rank-{rank}.txt").write_text(f"of {rank}\n")
    (found,) = stack_files.read(tmp_path, [])
    assert found.files == tuple((f"rank-{rank}.txt", f"of {rank}\n") for rank in range(1, 9))
