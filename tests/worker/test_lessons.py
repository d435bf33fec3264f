"""Lessons of workers, as the fork server reads them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys

import pytest
from hypothesis import given

from damaged_data import damaged
from hpclaunch.system.processes.fork_server_client import SITE
from hpclaunch.worker.lessons import MOST_BYTES, Lessons, RestartReports

STEP = ["import", "torch", "torch.py"]


@pytest.fixture
def lessons():
    lessons = Lessons()
    yield lessons
    lessons.begin(0)


def write(lessons, number, data):
    """Write this to one of the pipes, and take what there is after each piece."""
    for at in range(0, len(data), 1 << 12):
        pipe = lessons.pipes[number]
        os.write(pipe.writing, data[at : at + (1 << 12)])
        if (found := lessons.take(pipe)) is not None:
            return [[*step.fields().values()] for step in found[0]], found[1]
    return None


def test_the_steps_that_both_have_done(lessons):
    lessons.begin(2)
    other = ["set", "A", None]
    assert write(lessons, 0, json.dumps([STEP, other]).encode() + b"\n") is None
    assert write(lessons, 1, json.dumps([STEP]).encode() + b"\n") == ([STEP], ["A"])


def test_without_descriptors_there_is_no_lesson(lessons, monkeypatch):
    def pipe():
        if not granted:
            raise OSError("too many open files")
        return granted.pop()

    before = len(os.listdir("/proc/self/fd"))
    granted = [os.pipe()]
    monkeypatch.setattr(os, "pipe", pipe)
    assert lessons.begin(2) == lessons.pipes == granted == []
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(b"what?\n", id="no JSON"),
        pytest.param(b"[" * 20_000 + b"\n", id="nested too deeply"),
        pytest.param(b'[[["a"], 2, 3]]\n', id="other steps"),
        pytest.param(b'{"import": 1}\n', id="no steps"),
        pytest.param(b"x" * (MOST_BYTES + 1), id="no end"),
    ],
)
def test_a_lesson_of_a_broken_worker_has_no_steps(lessons, written):
    lessons.begin(2)
    assert write(lessons, 0, written) is None
    assert write(lessons, 1, json.dumps([STEP]).encode() + b"\n") == ([], [])


SAMPLES = [json.dumps([STEP, ["set", "A", None], ["set", "B", "1"]]).encode() + b"\n"]


@pytest.mark.fuzz
@given(damaged(SAMPLES), damaged(SAMPLES))
def test_any_lessons(one, other):
    lessons = Lessons()
    lessons.begin(2)
    assert write(lessons, 0, one) is None
    found = write(lessons, 1, other)
    assert found is None or all(isinstance(name, str) for name in found[1])
    lessons.begin(0)


REPORT = """
import os, sys
sys.path.append(sys.argv[1])
from _hpclaunch_hooks import beside
kind = beside("_hpclaunch_restart").Restarts
restarts = kind.__new__(kind)
restarts.pid, restarts.directory = 0, ""  # as in a process that the script has forked
name = bytes.fromhex(sys.argv[2]).decode("utf-8", "surrogateescape") * 1000
exec(compile(f"restarts.restart('variable', name)", name, "exec"))
sys.stdout.buffer.write(restarts.noted)
"""


@pytest.mark.starts
@pytest.mark.parametrize("character", ["a", "\u00e9", "\U0001f600", "\udcff", "\x01"])
def test_the_report_of_a_new_interpreter_is_one_write(character):
    """A pipe keeps reports of several workers apart up to PIPE_BUF bytes."""
    command = [sys.executable, "-c", REPORT, SITE, os.fsencode(character).hex()]
    line = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    assert len(line) <= select.PIPE_BUF
    reports = RestartReports()
    os.write(reports.writing, line)
    (report,) = reports.read()
    assert report.name
    assert report.name == report.file == character * len(report.name)
    os.close(reports.writing)
    os.close(reports.fileno())
