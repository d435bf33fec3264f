"""Several threads that unpack the first value of a type at the same time."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.starts

TRIES = 10  # more than half of them crashed
PROGRAM = """
import sys
from threading import Barrier, Thread

from hpclaunch.system.shared import packing
from hpclaunch.system.staging.orders import Reply

data, together = packing.pack(Reply(is_last=True)), Barrier(12)
sys.setswitchinterval(1e-6)


def unpack():
    together.wait()
    for _ in range(20):
        packing.unpack(data, Reply)


threads = [Thread(target=unpack) for _ in range(12)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


def test_threads_that_unpack_a_new_type_at_once():
    for _ in range(TRIES):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
