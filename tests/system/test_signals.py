"""The signals that an agent receives, also once it ignores them."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.starts

# The signal comes after `ignore`, and before anybody waits.
IGNORED = """
import os, signal, time
from hpclaunch.system.processes.signals import Signals, wait_for_end

Signals().ignore()
os.kill(os.getpid(), signal.SIGTERM)
began = time.monotonic()
wait_for_end(60.0)
print(time.monotonic() - began < 30.0)
"""


def test_the_end_of_the_step_is_noticed_as_soon_as_signals_are_ignored() -> None:
    done = subprocess.run([sys.executable, "-c", IGNORED], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)
