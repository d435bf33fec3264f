"""Children that somebody has stopped continue, but not those of a job that is suspended."""

from __future__ import annotations

import math
import signal
import subprocess

import psutil
import pytest

from hpclaunch.worker.stopped_children import LATE, PATIENCE, PAUSE, StoppedChildren, is_stopped


@pytest.fixture
def child():
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def stop(process, signum=signal.SIGSTOP):
    process.send_signal(signum)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        pass


def times():
    """When a process that runs looks."""
    return [PAUSE * n for n in range(math.ceil(PATIENCE / PAUSE) + 1)]


@pytest.mark.parametrize("signum", [signal.SIGSTOP, signal.SIGTSTP])
def test_a_child_that_stays_stopped_continues(child, signum):
    stop(child, signum)
    stopped, (*before, last) = StoppedChildren(), times()
    for now in before:
        assert stopped.look([child.pid], now) == []
        assert stopped.next_deadline() == now + PAUSE
    assert is_stopped(child.pid)
    assert stopped.look([child.pid], last) == [child.pid]
    assert not is_stopped(child.pid)
    assert stopped.next_deadline() == math.inf


def test_each_is_given_its_time(child):
    with subprocess.Popen(["sleep", "1000"]) as other:
        pids, stopped = [child.pid, other.pid], StoppedChildren()
        stop(child)
        assert stopped.look(pids, 0.0) == []
        stop(other)
        assert stopped.look(pids, PATIENCE - 0.5) == []  # at its SIGCHLD
        assert stopped.look(pids, PATIENCE) == [child.pid]
        assert is_stopped(other.pid)
        other.kill()


def test_the_time_in_which_the_parent_did_not_run_does_not_count(child):
    """A job is suspended, and its processes continue one after the other."""
    stop(child)
    stopped = StoppedChildren()
    assert stopped.look([child.pid], 0.0) == []
    resumed = stopped.next_deadline() + LATE + 1000.0
    assert stopped.look([child.pid], resumed) == []
    child.send_signal(signal.SIGCONT)
    while is_stopped(child.pid):
        pass
    assert stopped.look([child.pid], resumed + PATIENCE) == []


def test_children_that_run_or_have_ended_are_left_alone(child):
    stopped = StoppedChildren()
    assert stopped.look([child.pid], 0.0) == []
    stop(child)
    stopped.look([child.pid], 1.0)
    child.kill()
    child.wait()
    assert stopped.look([child.pid], 1.0 + PATIENCE) == []
    assert stopped.next_deadline() == math.inf
