"""Pickles are read in a child with limits on its time and memory."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from hpclaunch.system.checkpoints import confinement
from hpclaunch.system.checkpoints.confinement import OverLimitError, confined

pytestmark = pytest.mark.starts


def test_a_result_of_any_size_comes_back():
    assert confined(lambda: {"a": [(1, None, True)]}) == {"a": [(1, None, True)]}
    assert confined(lambda: "x" * 10**7) == "x" * 10**7


def test_so_do_errors():
    def fail(error: Exception) -> None:
        raise error

    with pytest.raises(ValueError, match="senseless") as caught:
        confined(lambda: fail(ValueError("senseless")))
    assert type(caught.value) is ValueError
    with pytest.raises(OSError, match="bad disk") as failed:
        confined(lambda: fail(OSError(errno.EIO, "bad disk")))
    assert failed.value.errno == errno.EIO


def test_a_child_that_dies():
    with pytest.raises(OverLimitError):
        confined(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_too_much_memory():
    with pytest.raises(OverLimitError):
        confined(lambda: len(bytearray(2 * confinement.MOST_MEMORY)))


def test_too_much_time(monkeypatch):
    def never_end() -> None:
        while True:
            pass

    monkeypatch.setattr(confinement, "MOST_SECONDS", 1)
    with pytest.raises(OverLimitError):
        confined(never_end)


def test_the_child_ends_with_whoever_waits_for_it():
    program = (
        "import os, time\n"
        "from hpclaunch.system.checkpoints.confinement import confined\n"
        "confined(lambda: print(flush=True) or time.sleep(600))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as waiting:
        waiting.stdout.readline()
        waiting.kill()
        assert waiting.stdout.read() == b""  # both have closed it
