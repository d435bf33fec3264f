"""Errands of all kinds in one process: some hang, and some are lost with the process."""

from __future__ import annotations

import math
import os
import signal
import socket
import tempfile
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from polling import receive

from hpclaunch.agent import evidence
from hpclaunch.agent.errands import Errands
from hpclaunch.core.protocol import events
from hpclaunch.core.protocol.model import Answer, Evidence, Query, QueryKind
from hpclaunch.system.shared.errands import (
    AskMps,
    Explain,
    Explained,
    FindJobEnd,
    MpsAnswered,
    Notified,
    Notify,
    ReadStacks,
    Resolve,
    Resolved,
    Stacks,
)
from hpclaunch.system.shared.helper import Helper
from surroundings import SHORT

pytestmark = pytest.mark.starts

LIMIT = 60.0  # seconds; far more than any of this takes
HERE = "127.0.0.2"  # other nodes cannot use a loopback address
THERE = "192.0.2.7"  # an address for documentation, to which nothing is sent
HANGS = "#!/bin/sh\n[ -e '{0}/go' ] && exec echo stack\ntouch '{0}/begun'\nexec sleep 600\n"


@pytest.fixture
def errands():
    errands = Errands(lambda _: True)
    yield errands
    errands.close()


@pytest.fixture
def py_spy(tmp_path, monkeypatch):
    """Return a stand-in for py-spy in PATH, whose text a test may change."""
    program = tmp_path / "py-spy"
    program.write_text('#!/bin/sh\necho "of $4"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return program


class Runner:
    """Runs errands; `answers` has their names and answers, in the order in which they ended."""

    def __init__(self, errands):
        self.errands, self.answers = errands, []

    def run(self, name, errand):
        self.errands.run(errand, partial(self._done, name))

    def _done(self, name, answer):
        self.answers.append((name, answer))
        return []

    def wait_for(self, count):
        """Wait for so many answers; return all of them."""
        end = time.monotonic() + LIMIT
        while len(self.answers) < count:
            assert time.monotonic() < end, self.answers
            receive(self.errands, limit=0.1)
        return self.answers


@pytest.fixture
def runner(errands):
    return Runner(errands)


def helpers():
    children = psutil.Process().children()  # also those of other tests
    return [child for child in children if is_helper(child)]


def is_helper(child):
    try:
        return "hpclaunch.agent.errand_service" in child.cmdline()
    except psutil.Error:  # it may have just ended
        return False


def helper():
    """Return the only helper, once its command line shows that it is one."""
    end = time.monotonic() + LIMIT
    while len(found := helpers()) != 1:
        assert time.monotonic() < end, found
    return found[0]


def resolve(host=THERE):
    return Resolve(host)


def notify(command):
    return Notify(command, {"event": "hang"})


def hanging(py_spy):
    """Let py-spy make a file "begun", and hang unless a file "go" exists."""
    py_spy.write_text(HANGS.format(py_spy.parent))
    return ReadStacks(str(py_spy), (1,), time.monotonic() + 600)


def test_each_errand_has_its_own_answer(runner, tmp_path):
    runner.run("name", resolve("a name.invalid"))
    runner.run("command", notify(f"cat > '{tmp_path}/event'; exit 3"))
    runner.run("address", resolve())
    runner.run("loopback", resolve(HERE))
    answers = dict(runner.wait_for(4))
    assert answers["name"] == Resolved(1, ())
    assert answers["command"] == Notified(2, "ended with 3")
    assert answers["address"] == Resolved(3, (THERE,))
    assert answers["loopback"] == Resolved(4, ())
    assert (tmp_path / "event").read_text() == '{"event": "hang"}\n'


def find_job_end():
    known = {"job": "7", "step": "", "end": "", "restarts": "", "nodes": "", "since": 0.0}
    return FindJobEnd(**known)


@pytest.mark.parametrize("kind", ["scontrol", "name", "py-spy", "command"])
def test_an_errand_that_hangs_delays_no_other(runner, errands, py_spy, tmp_path, monkeypatch, kind):
    """The errand is given up after its limit. Its process stays: a new one may hang, too."""
    stalls = hanging(py_spy)
    (tmp_path / "scontrol").symlink_to(py_spy)
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # without an address, Slurm is asked for the node's
    made = {"scontrol": find_job_end(), "name": resolve(HERE), "py-spy": stalls}
    runner.run(kind, made.get(kind) or notify("exec sleep 600"))
    first = helper()
    while not first.children():
        time.sleep(0.01)
    runner.run("other command", notify("exit 3"))
    runner.run("explanation", Explain("n1", (), ()))
    assert dict(runner.wait_for(2)) == {
        "other command": Notified(2, "ended with 3"),
        "explanation": Explained(3, ""),
    }
    errands.update(errands.deadline())
    assert runner.answers[2:] == [(kind, None)]
    runner.run("again", notify("exit 4"))
    assert runner.wait_for(4)[3] == ("again", Notified(4, "ended with 4"))
    assert helper() == first


def test_an_answer_that_is_too_late_is_dropped(runner, errands):
    runner.run("command", notify("exit 3"))
    errands.update(math.inf)
    receive(errands)
    assert runner.answers == [("command", None)]


def test_errands_that_hang_delay_no_other(runner, errands, py_spy):
    # Their process is kept: once a file system has stalled, a start of another may block.
    for _ in range(20):
        runner.run("stacks", hanging(py_spy))
    first = helper()
    errands.update(time.monotonic() + 2 * ReadStacks.limit)
    assert runner.answers == [("stacks", None)] * 20
    runner.run("command", notify("exit 4"))
    assert runner.wait_for(21)[-1] == ("command", Notified(21, "ended with 4"))
    assert helper() == first


def test_errands_that_a_killed_process_has_not_answered_begin_again(runner, py_spy, tmp_path):
    """The user's command is an exception: it must not run twice for an event."""
    runs = tmp_path / "runs"
    runner.run("stacks", hanging(py_spy))
    runner.run("command", notify(f"echo run >> '{runs}'; exec sleep 600"))
    while not (tmp_path / "begun").exists() or not runs.exists() or not runs.read_text():
        time.sleep(0.01)
    first = helper()
    below = first.children()
    (tmp_path / "go").touch()
    first.kill()
    assert runner.wait_for(2) == [("command", None), ("stacks", Stacks(1, ("stack\n",)))]
    assert helper() != first
    assert not any(process.is_running() for process in below)
    assert runs.read_text() == "run\n"


def test_a_process_that_is_not_replaced_leaves_errands_unanswered(py_spy):
    errands = Errands(lambda _: False)
    runner = Runner(errands)
    runner.run("stacks", hanging(py_spy))
    helper().kill()
    assert runner.wait_for(1) == [("stacks", None)]
    runner.run("name", resolve())
    assert errands.deadline() <= time.monotonic()
    errands.update(time.monotonic())
    assert runner.answers == [("stacks", None), ("name", None)]
    assert not helpers()


def test_a_foreign_mps_daemon_is_asked_by_its_front_end(runner, tmp_path):
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text("#!/bin/sh\nread asked && [ $asked = get_server_list ]\n")
    control.chmod(0o755)
    with (
        tempfile.TemporaryDirectory(dir=SHORT) as pipes,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon,
    ):
        daemon.bind(f"{pipes}/control")
        daemon.listen()
        runner.run("mps", AskMps(str(control), pipes))
        assert runner.wait_for(1) == [("mps", MpsAnswered(1, pipes, ""))]


def test_an_errand_that_fails_does_not_affect_others(runner, py_spy, tmp_path, capfd):
    """The failed errand has no answer, and is not tried again."""
    end = tmp_path / "end"
    runner.run("other", notify(f"while [ ! -e '{end}' ]; do sleep 0.01; done"))
    first = helper()
    runner.run("command", notify("a\0b"))
    assert runner.wait_for(1) == [("command", None)]
    end.touch()
    assert runner.wait_for(2)[1] == ("other", Notified(1, ""))
    assert helper() == first
    assert capfd.readouterr().err.count("ValueError: embedded null byte") == 1


def test_an_errand_for_which_no_thread_can_start_fails(runner, capfd):
    runner.run("command", notify("exec sleep 600"))  # so that no stack is free
    first = helper()
    while not first.children():
        time.sleep(0.01)
    first.rlimit(psutil.RLIMIT_AS, (first.memory_info().vms + (6 << 20), -1))
    runner.run("name", resolve())
    assert runner.wait_for(1) == [("name", None)]
    first.rlimit(psutil.RLIMIT_AS, (-1, -1))
    runner.run("again", resolve())
    assert runner.wait_for(2)[1] == ("again", Resolved(3, (THERE,)))
    assert helper() == first
    assert "can't start new thread" in capfd.readouterr().err


def test_a_process_that_cannot_start_leaves_errands_unanswered(runner, errands, monkeypatch):
    def fails(*_, **__):
        raise BlockingIOError("no process is left")

    monkeypatch.setattr(Helper, "__init__", fails)
    runner.run("name", resolve())
    assert runner.answers == []  # the caller may not be ready for the answer yet
    errands.wait(LIMIT)
    assert runner.answers == [("name", None)]


def test_all_child_processes_end_with_the_process(runner, errands, py_spy, tmp_path):
    pids = tmp_path / "pids"
    runner.run("command", notify(f"sleep 600 & echo $! > '{pids}'; wait"))
    runner.run("stacks", hanging(py_spy))
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
    """Return a list of complete evidence; `add` starts to complete more."""

    class Evidences(list):
        def add(self, number):
            return native.add_to(of_hang(number), self.take)

        def take(self, found):
            self.append(found)
            return [completed(found.query.number)]

    monkeypatch.setattr(evidence, "PY_SPY_LIMIT", LIMIT)  # this machine may be busy
    native = evidence.NativeStacks(errands)
    return Evidences()


def test_evidence_is_completed(taken, errands):
    assert taken.add(1) == []
    assert receive(errands) == [completed(1)]
    assert taken == [of_hang(1)._replace(native={0: f"of {os.getpid()}\n"})]


def test_evidence_waits_for_stacks_only_for_a_limited_time(taken, errands):
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
