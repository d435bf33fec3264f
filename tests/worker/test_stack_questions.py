"""The stacks of real workers that are asked for them, below a stand-in for the fork server."""

import contextlib
import resource
import subprocess
import sys

import psutil
import pytest
from progress_server import HOOKS, LIMIT, python

from falling_asleep import until_asleep
from hpclaunch.agent.evidence import state_of
from hpclaunch.worker import evidence, stack_questions
from hpclaunch.worker.site._hpclaunch_layout import HIGH, RESPONDER, SIGNAL
from hpclaunch.worker.worker_processes import is_traced
from surroundings import LIGHT_TORCH

pytestmark = pytest.mark.torch


@pytest.fixture
def patient(monkeypatch):
    """Wait for the answers of workers for as long as a busy machine may take."""
    for name in ("LIMIT", "LONGEST", "TRYING", "FORKED"):
        monkeypatch.setattr(evidence, name, float(LIMIT))
    monkeypatch.setattr(stack_questions, "LONGEST", float(LIMIT))


def stacks_of(server, command, cwd, forks=None, status=None):
    """Return what is known of a worker that has written "there", once it sleeps like that."""
    process = server.start(command, cwd, forks=forks)
    assert process.stdout.readline() == "there\n", process.communicate()
    if status is not None:
        until_asleep(process.pid, status)
    return server.evidence()


# A worker that answers, once its thread for that has begun.
ANSWERS = f"""import sys, time, torch; from _hpclaunch_hooks import progress
torch.optim.SGD([torch.zeros(1)], lr=0.1)
while not progress._slot.numbers[{RESPONDER}]: time.sleep(0.001)
"""


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("before", ["", ANSWERS], ids=["does not answer", "answers"])
def test_stacks_of_all_threads_while_native_code_holds_the_lock(
    server, forks_or_none, tmp_path, before
):
    text = """
import ctypes, threading
begun = threading.Event()
def waits():
    begun.set()
    threading.Event().wait()
def holds():
    ctypes.PyDLL(None).system(b"echo there; exec sleep 1000")
threading.Thread(target=waits, daemon=True).start()
begun.wait()
holds()
"""
    if forks_or_none is None:
        before = f"import sys; sys.path.insert(0, {LIGHT_TORCH!r})\n{before}"
    found = stacks_of(server, before + text, tmp_path, forks_or_none)
    assert " in waits\n" in found["stacks"]
    assert " in holds\n" in found["stacks"]
    assert found["stacks"].rstrip().endswith("in <module>")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", ["CDLL", "PyDLL"])
def test_stacks_while_the_kernel_holds_up_the_main_thread(server, forks, tmp_path, kind):
    """The state is that of a read from a stalled file system. The main thread has released the
    GIL or, as with a file that is mapped into memory, has not."""
    text = f"""
import ctypes, signal
libc, stack, size = ctypes.{kind}(None), ctypes.create_string_buffer(1 << 16), 1 << 16
top = ctypes.c_void_p((ctypes.addressof(stack) + size) & ~15)
never = ctypes.create_string_buffer(64)  # a semaphore: unlike pause(), it outlasts the signal
CLONE_VM, CLONE_VFORK = 0x100, 0x4000
def is_held_up():
    print("there", flush=True)
    libc.clone(libc.sem_wait, top, CLONE_VM | CLONE_VFORK | signal.SIGCHLD, never)
is_held_up()
"""
    found = stacks_of(server, ANSWERS + text, tmp_path, forks, psutil.STATUS_DISK_SLEEP)
    assert found["processes"][0]["state"] == "D"
    assert " in is_held_up\n" in found["stacks"]
    assert found["stacks"].rstrip().endswith("in <module>")


RUNNING = """
import ctypes, io, textwrap, threading, time, tokenize
begun = threading.Event()
def runs():
    text = "def f(x):\\n    return sorted([y for y in range(x)], key=lambda y: -y)"
    code = compile(text, "f", "exec")
    begun.set()
    while True:
        exec(code, found := {})
        found["f"](9)
        textwrap.wrap("a b c d e f" * 9)
        time.sleep(PAUSE) if PAUSE else None
        list(tokenize.generate_tokens(io.StringIO("a = 1\\n").readline))
def waits():
    threading.Thread(target=runs, daemon=True).start()
    begun.wait()
    print("there", flush=True)
    while True:
        ctypes.CDLL(None).sleep(1000)
"""


@pytest.mark.parametrize(("trains", "pause"), [(True, 0), (False, 0), (False, 0.002)])
def test_no_worker_dies_of_a_question(server, forks, tmp_path, monkeypatch, trains, pause):
    """A handler that reads stacks while other threads change them reads freed memory: asked by
    signal at any moment, such a worker dies within a few questions."""
    text = RUNNING
    if trains:
        text += ANSWERS
    text = text.replace("PAUSE", str(pause)) + "waits()"
    monkeypatch.setattr(evidence, "TRYING", evidence.SPINNING)
    if trains:
        monkeypatch.setattr(evidence, "LIMIT", float(LIMIT))
        for module in (evidence, stack_questions):
            monkeypatch.setattr(module, "LONGEST", float(LIMIT))
    process = server.start(text, tmp_path, forks=forks)
    assert process.stdout.readline() == "there\n", process.communicate()
    for _ in range(20):
        stacks = server.evidence()["stacks"]
        assert process.poll() is None
        if trains:  # else there may be no moment in which it can be asked
            assert " in waits\n" in stacks
            assert " in runs\n" in stacks


@pytest.mark.usefixtures("patient")
def test_forked_processes_come_after_the_worker(server, forks, tmp_path):
    text = """
import os, torch, time
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if index == 0:
            os.write(begun, b"1"), time.sleep(1000)
        return index
def waits():
    print("there", flush=True)
    next(batches)
loads, begun = os.pipe()
batches = iter(torch.utils.data.DataLoader(Samples(), num_workers=2))
os.read(loads, 1)
waits()
"""
    found = stacks_of(server, text, tmp_path, forks)
    assert " in waits\n" in found["stacks"]
    assert " in __getitem__\n" not in found["stacks"]
    pids = {each["pid"] for each in found["processes"]}
    assert len(found["forked"]) == 2
    assert {pid for pid, _ in found["forked"]} < pids
    assert sum(" in __getitem__\n" in text for _, text in found["forked"]) == 1


@pytest.mark.usefixtures("patient")
def test_the_main_thread_of_many(server, forks, tmp_path):
    """faulthandler writes the stacks of a hundred threads at most, the main one last."""
    text = """
import threading
def pool():
    threading.Event().wait()
def waits():
    print("there", flush=True), threading.Event().wait()
for _ in range(120):
    threading.Thread(target=pool, daemon=True).start()
waits()
"""
    found = stacks_of(server, ANSWERS + text, tmp_path, forks)
    assert state_of(found).place == "train.py:9, waits"


@pytest.mark.usefixtures("patient")
def test_descriptors_have_the_numbers_that_they_have_without_us(server, tmp_path):
    text = f"""
import os, sys
sys.path.insert(0, {LIGHT_TORCH!r})
import torch
lowest = os.dup(0)
os.close(lowest)
{ANSWERS}
print("there", flush=True)
input()
print(os.dup(0) == lowest)
"""
    assert stacks_of(server, python(tmp_path, text), tmp_path)["records"] is not None
    assert server.processes[0].communicate("\n")[0] == "True\n"


@pytest.mark.usefixtures("patient")
def test_the_process_that_trains_answers_for_a_launcher_of_the_scripts(server, tmp_path):
    text = f"""
import sys, time
sys.path.insert(0, {LIGHT_TORCH!r})
import torch
def waits():
    torch.optim.SGD([torch.zeros(1)], lr=0.1)
    print("there", flush=True)
    time.sleep(1000)
waits()
"""
    inner = python(tmp_path, text)
    outer = f"import subprocess, sys\nsubprocess.run({inner!r})"
    found = stacks_of(server, [sys.executable, "-c", outer], tmp_path)
    assert " in waits\n" in found["stacks"]


OWN_HANDLER = f"""
import signal, sys, time
signal.signal({SIGNAL}, lambda *_: print("mine", flush=True))
"""


def test_a_handler_that_was_there_before_stays_and_is_not_called(server, tmp_path):
    """For example, a worker has one of sitecustomize from the template."""
    (tmp_path / "train.py").write_text("import time\nprint('there', flush=True)\ntime.sleep(1000)")
    before = f"{OWN_HANDLER}\nimport runpy\nsys.path.insert(0, {str(HOOKS)!r})\n"
    begins = "import _hpclaunch_hooks\nrunpy.run_path('train.py')"
    found = stacks_of(server, [sys.executable, "-S", "-E", "-c", before + begins], tmp_path)
    assert found["stacks"] == ""
    server.processes[0].kill()
    assert server.processes[0].stdout.read() == ""


# The descriptor for stacks of a worker that has the limit of this process.
STACKS = next(fd for fd in HIGH if fd < resource.getrlimit(resource.RLIMIT_NOFILE)[0])


@pytest.mark.parametrize(
    "closes",
    [
        "os.closerange(3, 4096)",
        f"import faulthandler; faulthandler.unregister({SIGNAL})",
        f"os.dup2(os.open('mine', os.O_WRONLY | os.O_CREAT), {STACKS})",
    ],
)
def test_a_script_that_takes_away_what_is_needed_is_left_alone(server, tmp_path, closes):
    text = f"import os, time\n{closes}\nprint('there', flush=True)\ntime.sleep(1000)"
    found = stacks_of(server, python(tmp_path, text), tmp_path)
    assert found["stacks"] == ""
    assert server.processes[0].poll() is None
    mine = tmp_path / "mine"
    assert not mine.exists() or not mine.read_text()


def test_a_handler_that_the_script_sets_is_called(server, tmp_path):
    """The owner of a handler is unknown: see docs/inside-workers.md."""
    text = f"{OWN_HANDLER}print('there', flush=True)\ntime.sleep(1000)"
    assert stacks_of(server, python(tmp_path, text), tmp_path)["stacks"] == ""
    assert server.processes[0].stdout.readline() == "mine\n"


@pytest.mark.usefixtures("patient")
def test_a_script_that_a_debugger_has_stopped(server, tmp_path):
    text = """
import pdb
def stops():
    pdb.set_trace()
    return 1
stops()
"""
    process = server.start(python(tmp_path, text), tmp_path)
    assert process.stdout.readline().startswith("> ")  # what pdb writes first
    state = state_of(server.evidence())
    assert state.debugged
    assert state.place.startswith("train.py:")
    assert state.place.endswith(", stops")


SEIZES = """
import ctypes, sys, time
PTRACE_SEIZE = 0x4206
if ctypes.CDLL(None).ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None):
    sys.exit("not allowed")
print("there", flush=True)
time.sleep(1000)
"""


@pytest.mark.starts
@pytest.mark.parametrize(("name", "debugs"), [("gdb", True), ("py-spy", False)])
def test_who_looks_at_a_worker_for_a_moment_debugs_nothing(tmp_path, name, debugs):
    """The agent itself looks at workers that hang with py-spy, if there is one."""
    (tmp_path / name).symlink_to(sys.executable)  # the kernel goes by this name
    with contextlib.ExitStack() as ends:

        def start(*command):
            process = ends.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
            ends.callback(process.kill)
            return process

        looked_at = start("sleep", "1000")
        assert not is_traced(looked_at.pid)
        looker = start(tmp_path / name, "-I", "-S", "-c", SEIZES, str(looked_at.pid))
        if looker.stdout.readline() != "there\n":
            pytest.skip(f"ptrace: {looker.stderr.read()}")
        assert is_traced(looked_at.pid) == debugs


@pytest.mark.usefixtures("patient")
def test_few_descriptors(server, tmp_path):
    text = "import time\nprint('there', flush=True)\ntime.sleep(1000)"
    command = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *python(tmp_path, text)]
    assert " in <module>\n" in stacks_of(server, command, tmp_path)["stacks"]
