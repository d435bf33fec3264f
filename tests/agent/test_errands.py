"""Errands of all kinds in one process, of which some hang or are lost with it."""

from __future__ import annotations

import math
import os
import signal
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from polling import receive

from hpclaunch.agent import evidence
from hpclaunch.agent.errands import MOST_HUNG, Errands
from hpclaunch.core.protocol import events
from hpclaunch.core.protocol.model import Answer, Evidence, Query, QueryKind
from hpclaunch.system.shared.errands import (
    Explain,
    Explained,
    FindJobEnd,
    Notified,
    Notify,
    ReadStacks,
    Resolve,
    Resolved,
    Stacks,
)
from hpclaunch.system.shared.helper import Helper

pytestmark = pytest.mark.starts

LIMIT = 60.0  # seconds; far more than any of this takes
HERE = "127.0.0.2"
HANGS = "#!/bin/sh\n[ -e {0}/go ] && exec echo stack\ntouch {0}/begun\nexec sleep 600\n"


@pytest.fixture
def errands():
    errands = Errands(lambda _: True)
    yield errands
    errands.close()


@pytest.fixture
def py_spy(tmp_path, monkeypatch):
    """A program of this name in PATH, whose text a test may change."""
    program = tmp_path / "py-spy"
    program.write_text('#!/bin/sh\necho "of $4"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return program


class Asked:
    """What became of errands, in the order in which they ended."""

    def __init__(self, errands):
        self.errands, self.over = errands, []

    def run(self, name, errand):
        self.errands.run(errand, partial(self._done, name))

    def _done(self, name, answer):
        self.over.append((name, answer))
        return []

    def until(self, count):
        end = time.monotonic() + LIMIT
        while len(self.over) < count:
            assert time.monotonic() < end, self.over
            receive(self.errands, limit=0.1)
        return self.over


@pytest.fixture
def asked(errands):
    return Asked(errands)


def helpers():
    children = psutil.Process().children()  # also those of other tests
    return [child for child in children if is_helper(child)]


def is_helper(child):
    try:
        return "hpclaunch.agent.errand_service" in child.cmdline()
    except psutil.Error:  # it has just ended
        return False


def helper():
    """The only one, once its command line shows what it is."""
    end = time.monotonic() + LIMIT
    while len(found := helpers()) != 1:
        assert time.monotonic() < end, found
    return found[0]


def resolve(host=HERE):
    return partial(Resolve, host=host)


def notify(command):
    return partial(Notify, command=command, event={"event": "hang"})


def hanging(py_spy):
    """It hangs until there is a file "go" beside it, and makes one of the name "begun"."""
    py_spy.write_text(HANGS.format(py_spy.parent))
    return partial(ReadStacks, py_spy=str(py_spy), pids=(1,), until=time.monotonic() + 600)


def test_each_has_its_own_answer(asked, tmp_path):
    asked.run("name", resolve("a name.invalid"))
    asked.run("command", notify(f"cat > {tmp_path}/event; exit 3"))
    asked.run("address", resolve())
    answers = dict(asked.until(3))
    assert answers["name"] == Resolved(1, ())
    assert answers["command"] == Notified(2, "ended with 3")
    assert answers["address"] == Resolved(3, ())  # a loopback address is none for others
    assert (tmp_path / "event").read_text() == '{"event": "hang"}\n'


def find_job_end():
    known = {"job": "7", "step": "", "end": "", "restarts": "", "nodes": "", "since": 0.0}
    return partial(FindJobEnd, **known, before=None)


@pytest.mark.parametrize("kind", ["scontrol", "name", "py-spy", "command"])
def test_one_that_hangs_holds_up_no_other(asked, errands, py_spy, tmp_path, monkeypatch, kind):
    """It is given up after its time. The process stays: its start and end may hang as well."""
    stalls = hanging(py_spy)
    (tmp_path / "scontrol").symlink_to(py_spy)
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # without an address, Slurm is asked for the node's
    made = {"scontrol": find_job_end(), "name": resolve(), "py-spy": stalls}
    asked.run(kind, made.get(kind) or notify("exec sleep 600"))
    first = helper()
    while not first.children():
        time.sleep(0.01)
    asked.run("other command", notify("exit 3"))
    asked.run("explanation", partial(Explain, host="n1", addresses=(), ports=()))
    assert dict(asked.until(2)) == {
        "other command": Notified(2, "ended with 3"),
        "explanation": Explained(3, ""),
    }
    errands.update(errands.deadline())
    assert asked.over[2:] == [(kind, None)]
    asked.run("again", notify("exit 4"))
    assert asked.until(4)[3] == ("again", Notified(4, "ended with 4"))
    assert helper() == first


def test_an_answer_that_is_too_late_is_dropped(asked, errands):
    """And its errand does not count as one that hangs."""
    for number in range(MOST_HUNG):
        asked.run(number, notify("exit 3"))
        first = helper()
        errands.update(math.inf)
        receive(errands)
    assert asked.over == [(number, None) for number in range(MOST_HUNG)]
    assert helper() == first


def test_a_process_in_which_many_hang_is_replaced(asked, errands, py_spy, tmp_path):
    """Once what else it does is done."""
    end = tmp_path / "end"
    for _ in range(MOST_HUNG):
        asked.run("stacks", hanging(py_spy))
    asked.run("command", notify(f"while [ ! -e {end} ]; do sleep 0.01; done"))
    first = helper()
    while len(first.children()) <= MOST_HUNG:
        time.sleep(0.01)
    below = first.children(recursive=True)
    errands.update(time.monotonic() + 2 * ReadStacks.limit)
    assert asked.over == [("stacks", None)] * MOST_HUNG
    assert helper() == first
    end.touch()
    assert asked.until(MOST_HUNG + 1)[-1] == ("command", Notified(MOST_HUNG + 1, ""))
    assert not any(process.is_running() for process in [first, *below])
    asked.run("again", notify("exit 4"))
    assert asked.until(MOST_HUNG + 2)[-1] == ("again", Notified(MOST_HUNG + 2, "ended with 4"))


def test_what_a_killed_process_has_not_answered_is_begun_again(asked, py_spy, tmp_path):
    """But for the user's command, which is not run twice for an event."""
    runs = tmp_path / "runs"
    asked.run("stacks", hanging(py_spy))
    asked.run("command", notify(f"echo run >> {runs}; exec sleep 600"))
    while not (tmp_path / "begun").exists() or not runs.exists() or not runs.read_text():
        time.sleep(0.01)
    first = helper()
    below = first.children()
    (tmp_path / "go").touch()
    first.kill()
    assert asked.until(2) == [("command", None), ("stacks", Stacks(1, ("stack\n",)))]
    assert helper() != first
    assert not any(process.is_running() for process in below)
    assert runs.read_text() == "run\n"


def test_one_that_is_not_replaced_leaves_errands_unanswered(py_spy):
    errands = Errands(lambda _: False)
    asked = Asked(errands)
    asked.run("stacks", hanging(py_spy))
    helper().kill()
    assert asked.until(1) == [("stacks", None)]
    asked.run("name", resolve())
    assert errands.deadline() <= time.monotonic()
    errands.update(time.monotonic())
    assert asked.over == [("stacks", None), ("name", None)]
    assert not helpers()


def test_one_that_fails_leaves_the_others_alone(asked, py_spy, tmp_path, capfd):
    """It has no answer, and is not tried again."""
    end = tmp_path / "end"
    asked.run("other", notify(f"while [ ! -e {end} ]; do sleep 0.01; done"))
    first = helper()
    asked.run("command", notify("a\0b"))
    assert asked.until(1) == [("command", None)]
    end.touch()
    assert asked.until(2)[1] == ("other", Notified(1, ""))
    assert helper() == first
    assert capfd.readouterr().err.count("ValueError: embedded null byte") == 1


def test_one_for_which_no_thread_is_left_fails(asked, capfd):
    asked.run("command", notify("exec sleep 600"))  # so that no stack is free
    first = helper()
    while not first.children():
        time.sleep(0.01)
    first.rlimit(psutil.RLIMIT_AS, (first.memory_info().vms + (1 << 20), -1))
    asked.run("name", resolve())
    assert asked.until(1) == [("name", None)]
    first.rlimit(psutil.RLIMIT_AS, (-1, -1))
    asked.run("again", resolve())
    assert asked.until(2)[1] == ("again", Resolved(3, ()))
    assert helper() == first
    assert "can't start new thread" in capfd.readouterr().err


def test_one_that_cannot_be_started(asked, errands, monkeypatch):
    def fails(*_, **__):
        raise BlockingIOError("no process is left")

    monkeypatch.setattr(Helper, "__init__", fails)
    asked.run("name", resolve())
    assert asked.over == []  # whoever asks may not be ready for the answer yet
    errands.wait(LIMIT)
    assert asked.over == [("name", None)]


def test_its_end_is_that_of_all_that_it_runs(asked, errands, py_spy, tmp_path):
    pids = tmp_path / "pids"
    asked.run("command", notify(f"sleep 600 & echo $! > {pids}; wait"))
    asked.run("stacks", hanging(py_spy))
    while not pids.exists() or not pids.read_text() or len(helper().children()) < 2:
        time.sleep(0.01)
    below = helper().children(recursive=True)
    assert int(pids.read_text()) in [process.pid for process in below]
    errands.close()
    assert not any(process.is_running() for process in below)


# Native stacks


def of_hang(number):
    rank = {"rank": 0, "pid": os.getpid(), "stacks": "", "records": None}
    rank |= {"processes": [], "busy": False}
    query = Query(QueryKind.EVIDENCE, number)
    return evidence.HangEvidence(Path("evidence"), query, [rank], {})


def completed(number):
    return events.WorkersAnswered(Answer(Query(QueryKind.EVIDENCE, number), Evidence(())))


@pytest.fixture
def taken(errands, py_spy, monkeypatch):
    """Evidence that is complete; `add` gives some to complete."""

    class Taken(list):
        def add(self, number):
            return native.add_to(of_hang(number), self.take)

        def take(self, found):
            self.append(found)
            return [completed(found.query.number)]

    monkeypatch.setattr(evidence, "PY_SPY_LIMIT", LIMIT)  # this machine may be busy
    native = evidence.NativeStacks(errands)
    return Taken()


def test_evidence_is_completed(taken, errands):
    assert taken.add(1) == []
    assert receive(errands) == [completed(1)]
    assert taken == [of_hang(1)._replace(native={0: f"of {os.getpid()}\n"})]


def test_evidence_does_not_wait_for_stacks_for_ever(taken, errands):
    assert taken.add(1) == []
    process = helper()
    process.send_signal(signal.SIGSTOP)
    assert errands.update(time.monotonic()) == []
    assert errands.deadline() <= time.monotonic() + ReadStacks.limit
    assert errands.update(errands.deadline()) == [completed(1)]
    assert taken == [of_hang(1)]
    process.send_signal(signal.SIGCONT)
    taken.add(2)
    while len(taken) == 1:
        receive(errands)
    assert [each.query.number for each in taken] == [1, 2]
