"""The threads of gloo that `destroy_process_group` waits for, found by their names."""

import subprocess
import sys

import pytest

from hpclaunch.system.processes.fork_server_client import SITE

pytestmark = pytest.mark.starts

SCRIPT = """
import ctypes, sys, threading, _thread
sys.path.insert(0, sys.argv[1])
from _hpclaunch_hooks import states_of_gloo

end = threading.Event()

def set_name(name):
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)

def run(name, begun):
    if name:
        set_name(name)
    begun.set()
    end.wait()

def start(name=b""):
    begun = threading.Event()
    _thread.start_new_thread(run, (name, begun))
    begun.wait()

set_name(b") R 1 (main")
start(b"other) S 1")
print(len(states_of_gloo()))
start()  # with the name of this thread, as gloo's have it in older versions
print(len(states_of_gloo()))
start(b"pt_gloo_runloop")
start(b"pt_gloo_runloop")
print(len(states_of_gloo()))
print(set(states_of_gloo()) <= {b"R", b"S", b"D"})
"""


def test_they_have_a_name_of_their_own_or_that_of_the_calling_thread():
    command = [sys.executable, "-c", SCRIPT, SITE]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert found.split() == ["0", "1", "2", "True"]
