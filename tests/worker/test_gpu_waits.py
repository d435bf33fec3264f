"""Workers that wait for a GPU, which use a CPU like those that compute."""

import os
import signal
import subprocess
import sys

import pytest
from progress_server import LIMIT
from test_progress_watch import looks, until_reported, watch  # noqa: F401 - a fixture

from hpclaunch.system.processes.fork_server_client import SITE
from surroundings import environment

pytestmark = pytest.mark.starts

# A function that keeps the caller waiting without the GIL, as torch does where it waits for a
# GPU, is a stand-in for methods of a tensor.
CALLS = """
import ctypes, os, sys, threading, time
sys.path.append({site!r})
from _hpclaunch_hooks import beside
responder = beside("_hpclaunch_responder")

libc = ctypes.CDLL(None)

class Tensor:
    item, to, quick = libc.pause, libc.pause, libc.getpid
    device = "cuda"

    def detach(self):
        return self

    def __format__(self, form):
        return self.item()

def main():
    x, wait, compute = Tensor(), libc.pause, libc.pause
    {body}

def hear():
    # On a busy machine, the main thread may not wait yet.
    while not (name := responder.called()) and {is_named}:
        time.sleep(0.01)
    print(name, flush=True)
    os._exit(0)

threading.Timer(0.2, hear).start()
main()
"""


@pytest.mark.parametrize(
    ("body", "name"),
    [
        pytest.param("x.item()", "item", id="a value from the GPU"),
        pytest.param("x.detach().item()", "item", id="at the end of a chain"),
        pytest.param("print(f'loss {x}')", "item", id="formatted"),
        pytest.param("x.to('cpu')", "to", id="with an argument"),
        pytest.param("x.to(x.device)", "to", id="with an attribute"),
        pytest.param("x.to(x.detach().device, 1)", "to", id="with two arguments"),
        pytest.param("x.to(str(x.device))", "to", id="with the value of a function"),
        pytest.param("x.to(device=x.device)", "to", id="with a keyword"),
        pytest.param("x.to(1, device=str(x.device))", "to", id="with an argument and a keyword"),
        pytest.param("x.to(*[x.device], **{'copy': 1})", "to", id="with all of a list"),
        pytest.param("x.detach().to(x.device)", "to", id="with an attribute, in a chain"),
        pytest.param("compute(x.to)", "", id="a name that is an argument"),
        pytest.param("compute(x.quick(), x.to)", "", id="a name that is the second argument"),
        pytest.param("compute(x and x.to)", "", id="a name in a branch"),
        pytest.param("x.quick(); compute()", "", id="after another call"),
        pytest.param("y = x.item; compute()", "", id="a name that is only kept"),
        pytest.param("while True: x.quick()", "", id="again and again: it runs Python"),
        pytest.param("while True: pass", "", id="no call at all"),
        pytest.param(
            "import dis; dis.stack_effect = lambda *_: int(''); x.to('cpu')",
            "",
            id="code that dis does not know",
        ),
    ],
)
def test_the_name_of_what_the_main_thread_waits_in(body, name):
    text = CALLS.format(site=SITE, body=body, is_named=bool(name))
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.stdout.strip() == name, done.stderr


ALLOCATES = """
import sys, time, types
sys.path.append({site!r})
from _hpclaunch_hooks import progress

stats = lambda device: {{"allocation": {{"all": {{"allocated": {count}}}}}}}
sys.modules["torch.cuda"] = types.SimpleNamespace(
    is_initialized=lambda: True, device_count=lambda: 1, memory_stats_as_nested_dict=stats
)
progress.begin()
progress.answer()
print(flush=True)
while True:
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("count", "moves"),
    [("time.monotonic_ns()", True), ("4711", False), ("0", False), ("time.absent", False)],
)
def test_who_allocates_memory_of_a_gpu_does_something(watch, count, moves):  # noqa: F811
    """Whenever it is looked at, it may wait for the GPU."""
    variables = watch.begin([0])[0]
    worker = subprocess.Popen(
        [sys.executable, "-c", ALLOCATES.format(site=SITE, count=count)],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    worker.stdout.readline()
    try:
        looks(watch, worker, number=4)  # it may still begin
        if moves:
            until_reported(watch, worker, lambda each: each.still == 0)
        else:
            assert all(report.still > 0 for report in looks(watch, worker, number=10))
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.communicate()
