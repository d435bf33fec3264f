"""Pickles are read in a child with limits on its time and memory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpclaunch.system.checkpoints import confinement
from hpclaunch.system.checkpoints.confinement import UnansweredError, confined

pytestmark = pytest.mark.starts


def test_a_result_of_any_size_comes_back():
    assert confined(0, lambda: {"a": [(1, None, True)]}) == {"a": [(1, None, True)]}
    assert confined(0, lambda: "x" * 10**7) == "x" * 10**7


def fail(error: Exception) -> None:
    raise error


def test_so_do_errors():
    with pytest.raises(ValueError, match="senseless") as caught:
        confined(0, lambda: fail(ValueError("senseless")))
    assert type(caught.value) is ValueError
    with pytest.raises(OSError, match="bad disk") as failed:
        confined(0, lambda: fail(OSError(errno.EIO, "bad disk")))
    assert failed.value.errno == errno.EIO


def test_an_error_that_nobody_expects_is_no_limit():
    with pytest.raises(UnansweredError, match="failed: AssertionError: a bug"):
        confined(0, lambda: fail(AssertionError("a bug")))
    with pytest.raises(UnansweredError, match=f"signal {int(signal.SIGTERM)}"):
        confined(0, lambda: os.kill(os.getpid(), signal.SIGTERM))


def test_a_child_that_is_killed():
    with pytest.raises(UnansweredError, match=confinement.TOO_MUCH):
        confined(0, lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_memory_grows_with_the_file():
    def take() -> int:
        return len(bytearray(1 << 30))

    with pytest.raises(UnansweredError, match=confinement.TOO_MUCH):
        confined(1 << 20, take)
    assert confined(1 << 30, take) == 1 << 30
    with pytest.raises(UnansweredError, match=confinement.TOO_MUCH):
        confined(1 << 40, lambda: len(bytearray(2 * confinement.MOST_MEMORY)))


def test_time_grows_with_the_file():
    def seconds() -> int:
        return resource.getrlimit(resource.RLIMIT_CPU)[1]

    assert confined(0, seconds) < confined(1 << 28, seconds) < confinement.MOST_SECONDS
    assert confined(1 << 40, seconds) == confinement.MOST_SECONDS


def test_an_answer_larger_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(confinement, "MOST_ANSWER", 1000)
    with pytest.raises(UnansweredError, match=confinement.TOO_MUCH):
        confined(0, lambda: "x" * 1000)


def writing_ends() -> int:
    """Count this process's ends of pipes that can be written to."""
    found = 0
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # that of the list itself
            is_written = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
            found += is_written and stat.S_ISFIFO(os.fstat(fd).st_mode)
    return found


def test_children_at_once_do_not_hold_each_others_pipes():
    """A child that held another's pipe would keep the reader of that pipe waiting."""
    before = writing_ends()
    with ThreadPoolExecutor(8) as pool:
        counts = set(pool.map(lambda _: confined(0, writing_ends), range(200)))
    assert counts == {before + 1}


def test_too_much_time(monkeypatch):
    def never_end() -> None:
        while True:
            pass

    monkeypatch.setattr(confinement, "MOST_SECONDS", 1)
    with pytest.raises(UnansweredError, match=confinement.TOO_MUCH):
        confined(0, never_end)


def test_the_child_ends_with_whoever_waits_for_it():
    program = (
        "import os, time\n"
        "from hpclaunch.system.checkpoints.confinement import confined\n"
        "confined(0, lambda: print(flush=True) or time.sleep(600))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as waiting:
        waiting.stdout.readline()
        waiting.kill()
        assert waiting.stdout.read() == b""  # both have closed it
