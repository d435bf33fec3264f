"""Queries about workers, which are real processes, and the answers that their agent gets."""

from __future__ import annotations

import os
import subprocess
import time
from types import SimpleNamespace

import pytest

from falling_asleep import until_asleep
from hpclaunch.worker.fork_server_messages import EVIDENCE, HISTORY, SAMPLE, VITALS, Answer
from hpclaunch.worker.processes import CPU_TIMES, stat
from hpclaunch.worker.worker_watch import WorkerWatch

LIMIT = 120.0


class Round:
    """A round of one worker, which sleeps."""

    def __init__(self):
        self.worker = subprocess.Popen(["sleep", "600"])
        until_asleep(self.worker.pid)  # until then it opens libraries
        self.reports = []
        self.is_paused = False
        workers = SimpleNamespace(pids=lambda: {0: self.worker.pid})
        self.watch = WorkerWatch(workers, self.reports.append, lambda: self.is_paused)
        self.watch.begin([0])

    @property
    def answers(self):
        return [(each.kind, each.number) for each in self.reports if isinstance(each, Answer)]

    def run_until(self, answers):
        """Look at the worker whenever that is due, until there are so many answers."""
        limit = time.monotonic() + LIMIT
        while len(self.answers) < answers:
            assert time.monotonic() < limit, self.reports
            time.sleep(max(0.0, min(self.watch.due(), limit) - time.monotonic()))
            self.watch.look()

    def end(self):
        self.watch.end()
        self.worker.kill()
        self.worker.wait()


@pytest.fixture
def round_(starts):
    round_ = Round()
    yield round_
    round_.end()


def test_queries_of_several_kinds_are_answered_side_by_side(round_):
    round_.watch.ask(SAMPLE, 1)
    round_.watch.ask(VITALS, 2)
    assert round_.answers == [(VITALS, 2)]  # at once
    round_.run_until(answers=2)
    assert round_.answers == [(VITALS, 2), (SAMPLE, 1)]


def test_a_viewer_takes_no_cpu_time_from_the_history(round_, monkeypatch):
    used = 0

    def stat_after(process):
        fields = stat(process)
        fields[CPU_TIMES] = [b"%d" % used, b"0"]
        return fields

    monkeypatch.setattr("hpclaunch.worker.worker_watch.stat", stat_after)
    round_.watch.ask(HISTORY, 0)
    used = 100
    round_.watch.ask(VITALS, 1)
    round_.watch.ask(HISTORY, 0)
    assert [each.body["ranks"][0]["cpu"] > 0 for each in round_.reports] == [False, True, True]


def test_a_query_replaces_an_earlier_one_of_its_kind(round_):
    round_.watch.ask(SAMPLE, 1)
    round_.watch.ask(SAMPLE, 2)
    round_.run_until(answers=1)
    assert round_.answers == [(SAMPLE, 2)]


def test_samples_wait_while_evidence_is_found(round_):
    """The answers of the workers would mix."""
    round_.watch.ask(SAMPLE, 1)
    round_.watch.ask(EVIDENCE, 2)  # the sample begins anew afterwards
    round_.run_until(answers=2)
    round_.watch.ask(EVIDENCE, 3)
    round_.watch.ask(SAMPLE, 4)
    round_.run_until(answers=4)
    assert round_.answers == [(EVIDENCE, 2), (SAMPLE, 1), (EVIDENCE, 3), (SAMPLE, 4)]


def test_only_evidence_is_found_while_workers_are_paused(round_):
    round_.is_paused = True
    round_.watch.ask(EVIDENCE, 1)
    round_.run_until(answers=1)
    assert [type(each) for each in round_.reports] == [Answer]
    round_.watch.ask(SAMPLE, 2)
    assert round_.watch.due() == float("inf")
    round_.is_paused = False
    round_.run_until(answers=2)
    assert round_.answers == [(EVIDENCE, 1), (SAMPLE, 2)]


def test_a_round_that_ends_takes_its_queries_along(round_):
    round_.watch.ask(SAMPLE, 1)
    round_.watch.ask(EVIDENCE, 2)
    round_.watch.end()
    round_.watch.begin([0])
    round_.watch.ask(SAMPLE, 3)
    round_.run_until(answers=1)
    assert round_.answers == [(SAMPLE, 3)]


def test_a_new_kind_of_query_is_one_more_finder(round_):
    """Nothing else here knows the kinds. In a launch it also takes the name and the type of its
    answer (core/protocol/model.py), and a case where the agent reads that (agent/fork_server.py).
    """

    def open_files():
        (pid,) = round_.watch._workers.pids().values()
        yield 0.01  # a kind may take several steps
        yield {"ranks": [{"rank": 0, "files": len(os.listdir(f"/proc/{pid}/fd"))}]}

    round_.watch._finders["files"] = open_files
    round_.watch.ask("files", 1)
    round_.watch.ask(VITALS, 2)
    round_.run_until(answers=2)
    assert round_.answers == [(VITALS, 2), ("files", 1)]
    assert round_.reports[-1].body == {"ranks": [{"rank": 0, "files": 3}]}
