"""Native stacks of real processes, as py-spy tells them."""

import math
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpclaunch.system.processes import py_spy

pytestmark = pytest.mark.starts

PROGRAM = shutil.which("py-spy", path=Path(sys.executable).parent)
WAITS = """
import ctypes
native, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
native.pthread_mutex_lock(mutex)
print(flush=True)
native.pthread_mutex_lock(mutex)
"""


@pytest.fixture
def waiting():
    """A process that waits in C, with Python's lock."""
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.mark.skipif(PROGRAM is None, reason="needs py-spy")
def test_the_stack_of_a_process_that_holds_pythons_lock(waiting):
    (text,) = py_spy.stacks_of(PROGRAM, [waiting], time.monotonic() + 60.0)
    assert "pthread_mutex_lock" in text or "ermission" in text, text


def test_what_is_in_the_way(tmp_path):
    (text,) = py_spy.stacks_of(str(tmp_path / "missing"), [1], math.inf)
    assert text.endswith("/missing: No such file or directory\n")
