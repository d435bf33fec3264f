"""The template: workers and stores forked from a process that has imported torch.

Where only our own rules are tested, that is a package of the same name and shape, which imports
in milliseconds (stand_ins/light_torch). What is marked `torch` has the real one.
"""

import ctypes
import os
import re
import select
import shutil
import signal
import socket
import time
from pathlib import Path
from random import Random

import psutil
import pytest
from serving import LIMIT, eventually, gone, python, sh, wait_for
from templates import PATH, Warm, WithTorch

from helper_programs import program_after
from hpclaunch.system.processes import fork_server_client
from hpclaunch.system.processes.fork_server_client import SITE
from hpclaunch.system.shared import helper
from hpclaunch.worker.fork_server_messages import Kill, Stop
from surroundings import LIGHT_TORCH, PRELOADED

pytestmark = pytest.mark.starts


@pytest.fixture
def client(tmp_path, request):
    client = Warm(tmp_path, [] if request.node.get_closest_marker("torch") else [LIGHT_TORCH])
    yield client
    client.server.close()


def set_limits(monkeypatch, statements):
    """Have the fork server of this test run these statements first."""
    imports = "from hpclaunch.worker import starting, template_client"
    monkeypatch.setattr(helper, "_PROGRAM", program_after(imports, statements))


@pytest.fixture
def _impatient(monkeypatch):
    """Have the fork server wait only briefly for a template that hangs."""
    set_limits(monkeypatch, "template_client.LIMIT = 2.0; starting.FORK_LIMIT = 1.0")


@pytest.fixture
def _patient(monkeypatch):
    """Have the fork server wait for a template for as long as a busy machine may take."""
    set_limits(monkeypatch, f"starting.FORK_LIMIT = {LIMIT}")


@pytest.fixture(scope="module")
def with_torch(starts, tmp_path_factory):
    client = WithTorch(tmp_path_factory.mktemp("with-torch"))
    yield client
    client.server.close()


@pytest.mark.torch
def test_workers_find_torch_there(with_torch):
    source = "import sys; print(preloaded('torch'), __name__, sys.argv[1:])\n"
    assert with_torch.round(source, "a", "", workers=2) == ["True __main__ ['a', '']\n"] * 2
    assert with_torch.round(source, "b") == ["True __main__ ['b']\n"]


@pytest.fixture
def slow_torch(client):
    """Make a torch whose import waits for a file; return the file."""
    begun = client.tmp_path / "begun"
    (client.tmp_path / "slow" / "torch").mkdir(parents=True)
    (client.tmp_path / "slow" / "torch" / "__init__.py").write_text(
        "import os, time\n"
        f"while not os.path.exists({str(begun)!r}): time.sleep(0.01)\n"
        f"__path__ = [{LIGHT_TORCH + '/torch'!r}]\n"
        "with open(__path__[0] + '/__init__.py') as f: exec(f.read())\n"
    )
    client.torch = [str(client.tmp_path / "slow")]
    return begun


def test_a_start_waits_for_the_import(client, slow_torch):
    client.prepare("import sys; print(preloaded('torch'))\n")
    client.ask(client.command(), warm=True, env=client.env)
    time.sleep(0.2)  # a start that does not wait would fork or execute a worker now
    slow_torch.touch()
    client.until("gone")
    assert client.path(0, "out").read_text() == "True\n"


def test_workers_are_children_of_the_fork_server(client):
    client.prepare("import os; print(os.getppid(), flush=True); os.kill(os.getpid(), 9)\n")
    assert client.ready().round() == [f"{client.pid}\n"]
    assert client.until("exit")["signal"] == signal.SIGKILL


@pytest.mark.torch
def test_the_template_holds_nothing_that_a_fork_could_break(with_torch):
    process = with_torch.template()
    assert os.listdir(f"/proc/{process.pid}/task") == [str(process.pid)]
    fds = Path(f"/proc/{process.pid}/fd")
    links = [os.readlink(fd) for fd in fds.iterdir()]
    assert sum(link.startswith("socket:") for link in links) == 1
    assert not [link for link in links if link.startswith("/dev/") and link != "/dev/null"]
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "libtorch" in maps
    assert "zmq" not in maps


@pytest.mark.torch
def test_no_number_is_drawn_twice(with_torch):
    source = (
        "import random, torch, numpy, multiprocessing\n"
        "print(random.random(), torch.rand(1).item(), numpy.random.rand(),\n"
        "      multiprocessing.current_process().authkey.hex(), torch.initial_seed())\n"
    )
    drawn = with_torch.round(source, workers=3) + with_torch.round(source)
    assert len({word for line in drawn for word in line.split()}) == 4 * 5


# Stops once Python has finalized, before C++ libraries do: the exit code is the signal to raise.
STOPS = """import atexit, ctypes, os, signal, sys
c, library = ctypes.CDLL(None), ctypes.CDLL("libcrypt.so.1")
c.on_exit(getattr(c, "raise"), None)
atexit._run_exitfuncs()  # those of torch, which copy as much in a new interpreter
print(os.getpid(), open("/proc/self/smaps_rollup").read())
sys.exit(signal.SIGSTOP)
"""


@pytest.mark.torch
def test_a_worker_that_ends_copies_little_of_the_template(with_torch):
    with_torch.path(0, "out").unlink(missing_ok=True)
    with_torch.start(with_torch.command(STOPS), warm=True, env=PATH)
    pid, _, before = wait_for(with_torch.path(0, "out")).partition(" ")
    eventually(lambda: psutil.Process(int(pid)).status() == psutil.STATUS_STOPPED)
    after, template = (
        Path(f"/proc/{p}/smaps_rollup").read_text() for p in (pid, with_torch.template().pid)
    )
    with_torch.end_round()
    copied = kilobytes(after, "Private_Dirty") - kilobytes(before, "Private_Dirty")
    assert copied < 0.25 * kilobytes(template, "Anonymous")


def kilobytes(rollup, name):
    return int(rollup.partition(f"{name}:")[2].split()[0])


AT_EXIT = """import ctypes, sys, torch
c = ctypes.CDLL(None)
c.strdup.restype = ctypes.c_void_p
c.__cxa_atexit(c.puts, ctypes.c_void_p(c.strdup(b"exit handler")), None)
c.printf(b"not flushed\\n")
if sys.argv[1:]: ctypes.CDLL(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("words", "preloaded", "said"),
    [
        (["libcrypt.so.1"], "", "not flushed\nexit handler\n"),
        ([], "libcrypt.so.1", "not flushed\nexit handler\n"),
    ],
)
def test_exit_handlers_of_c_where_a_library_may_need_them(client, words, preloaded, said):
    client.prepare(AT_EXIT, env={"LD_PRELOAD": preloaded})
    assert client.ready().round(*words) == [said]


@pytest.mark.torch
def test_no_exit_handlers_of_c_with_torch_alone(with_torch):
    assert with_torch.round(AT_EXIT) == ["not flushed\n"]


def test_exit_handlers_of_a_library_that_a_site_loads(client):
    """The site may be any directory, for example one for a profile."""
    site = client.tmp_path / os.fsdecode(b"caf\xe9")
    site.mkdir()
    ctypes.CDLL("libcrypt.so.1")
    maps = Path("/proc/self/maps").read_text()
    shutil.copy(re.search(r"/\S+/libcrypt\.so\S+", maps)[0], site / "profiler.so")
    (site / "sitecustomize.py").write_text(
        f"import ctypes; ctypes.CDLL({str(site / 'profiler.so')!a})\n"
    )
    client.prepare(AT_EXIT, env={"PYTHONPATH": f"{SITE}:{site}"})
    assert client.ready().round() == ["not flushed\nexit handler\n"]


REGISTERED = """import logging, os, sys, torch
class Handler(logging.Handler):
    def emit(self, record): pass
logging.getLogger().addHandler(Handler())  # which the template imported, and has the script by it
class Held:
    def __del__(self): print("finalized with", os.sep)
file = open(sys.argv[1], "w")
file.write("not flushed")
held = Held()
"""


def test_a_script_that_is_registered_with_a_library_is_finalized(client):
    left = client.tmp_path / "left"
    client.prepare(REGISTERED)
    assert client.ready().round(str(left)) == ["finalized with /\n"]
    assert left.read_text() == "not flushed"


GROUP = """import torch.distributed as dist
class Group(dist.ProcessGroup):
    def __del__(self): print("destroyed")
dist.Backend.register_backend("own", lambda store, rank, size, timeout: Group(rank, size))
dist.init_process_group("own", store=dist.HashStore(), rank=0, world_size=1)
"""


@pytest.mark.torch
def test_process_groups_are_destroyed_at_the_end(with_torch):
    assert with_torch.round(GROUP) == ["destroyed\n"]


def test_a_worker_that_ends_at_once_is_not_missed(client):
    client.prepare("import os; os._exit(7)\n")
    client.ready()
    for _ in range(10):
        client.round(workers=3)
        assert [client.until("exit")["code"] for _ in range(3)] == [7, 7, 7]


@pytest.mark.parametrize("kind", ["out", "err"])
def test_no_worker_writes_through_a_link(client, kind):
    client.prepare("print('ran')")
    client.ready()
    client.path(0, kind).symlink_to("victim")
    client.start(client.command(), warm=True, env=PATH)
    assert client.until("exit")["code"] == 126
    assert not (client.tmp_path / "victim").exists()


def test_what_an_import_writes_every_worker_has(client):
    (client.tmp_path / "talks.py").write_text(
        "import sys; print('o' * 70000); sys.stderr.write('e')\n"
    )
    path = {"PYTHONPATH": f"{SITE}:{client.tmp_path}"}
    client.prepare("import talks; print('script')", "talks", env=path)
    assert client.ready().round(workers=2) == ["o" * 70000 + "\nscript\n"] * 2
    assert client.path(1).read_text() == "e"


UNFIT = {
    "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()": "threads",
    "import socket; s = socket.socket()": "socket:",
}


@pytest.mark.parametrize("source", UNFIT)
def test_a_module_that_no_fork_may_have_seen(client, source):
    """A template that imported it makes place for one without."""
    (client.tmp_path / "awkward.py").write_text(source)
    print_modules = "import sys; print([preloaded(m) for m in ('torch', 'awkward', 'wave')])"
    path = {"PYTHONPATH": f"{SITE}:{client.tmp_path}"}
    client.prepare(print_modules, "awkward", "wave", env=path)
    assert client.round() == ["[True, False, True]\n"]
    event = client.until("passed-over")
    assert event["module"] == "awkward"
    assert UNFIT[source] in event["why"]


# The modules that workers report as imported


def test_a_lesson_whose_successor_was_killed_is_not_forgotten(client):
    packages, once = client.tmp_path / "site-packages", client.tmp_path / "once"
    packages.mkdir()
    (packages / "slow.py").write_text(
        "import os, time\n"
        f"if 'RANK' not in os.environ and not os.path.exists({str(once)!r}):\n"
        f"    os.mkdir({str(once)!r}); time.sleep(1000)\n"
    )
    client.prepare(
        "import sys; print(preloaded('slow'))\nimport slow\n",
        env={"PYTHONPATH": f"{SITE}:{packages}"},
    )
    client.ready()
    template = client.template()
    client.round(learn=True)
    eventually(once.exists)
    (successor,) = set(client.others()) - {template}
    successor.kill()
    client.round(learn=True)
    client.until("renewed")
    assert client.round() == ["True\n"]


STEPS = """
import torch
optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters())
for _ in range(2):
    optimizer.step()
"""
PRINTS = "print(preloaded('wave'), file=sys.stderr)\n"


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(False, marks=pytest.mark.torch, id="after the first steps"),
        pytest.param(True, id="at its end"),
    ],
)
def test_what_the_script_imports_is_learned(client, ends):
    """A script without steps is learned at its end, others during the round."""
    wait = "" if ends else "import time; time.sleep(1000)\n"
    client.prepare(f"import sys\n{PRINTS}import wave\n{'' if ends else STEPS}{wait}")
    client.ready()
    client.start(client.command(), warm=True, env=PATH, learn=True)
    client.until("renewed")
    client.server.send(Kill())
    client.until("gone")
    client.start(client.command(), warm=True, env=PATH)
    eventually(lambda: client.path(0, "err").read_text() == "False\nTrue\n")


def test_a_lesson_is_what_two_workers_have_in_common(client):
    client.prepare(
        "import os, sys\n"
        "print(*(preloaded('wave'), preloaded('sndhdr')), file=sys.stderr)\n"
        "import wave\n"
        "if os.environ['RANK'] == '0': import sndhdr\n"
    )
    client.ready()
    client.round(workers=2, learn=True)
    client.until("renewed")
    client.round(workers=2)
    assert client.path(1, "err").read_text() == "True False\n"


@pytest.fixture
def packages(client):
    """Make a directory for installed libraries."""
    directory = client.tmp_path / "site-packages"
    directory.mkdir()
    return directory


def test_variables_that_the_script_sets_before_it_imports(client, packages):
    """The module has what it had in the script; the next worker sets it again."""
    (packages / "library.py").write_text("import os; mode = os.environ.get('MODE')")
    (packages / "later.py").write_text("import os; mode = os.environ.get('MODE')")
    client.prepare(
        "import os, sys\n"
        "del os.environ['HOME']\n"
        "known = preloaded('library')\n"
        "print(known, os.environ.get('MODE'), end=' ', file=sys.stderr)\n"
        "import library\n"
        "os.environ['MODE'] = 'fast'\n"
        "import later\n"
        "print(library.mode, later.mode, file=sys.stderr)\n",
        env={"PYTHONPATH": f"{SITE}:{packages}"},
    )
    client.ready()
    client.round(learn=True)
    assert client.path(0, "err").read_text() == "False None None fast\n"
    client.until("renewed")
    client.round()
    assert client.path(0, "err").read_text() == "True None None fast\n"


def test_variables_that_a_library_sets(client, packages):
    """The script does not set them, so a module that reads them may be imported in advance."""
    (packages / "library.py").write_text("import os; os.environ.setdefault('MODE', 'fast')")
    (packages / "later.py").write_text("import os; mode = os.environ.get('MODE')")
    client.prepare(
        "import os, sys\n"
        "print(preloaded('later'), os.environ.get('MODE'), end=' ', file=sys.stderr)\n"
        "import library, later\n"
        "print(later.mode, file=sys.stderr)\n",
        env={"PYTHONPATH": f"{SITE}:{packages}"},
    )
    client.ready()
    client.round(learn=True)
    assert client.path(0, "err").read_text() == "False None fast\n"
    client.until("renewed")
    client.round()
    assert client.path(0, "err").read_text() == "True fast fast\n"


def test_variables_that_are_away_for_a_while(client, packages):
    """Some scripts do something in an empty environment."""
    (packages / "later.py").write_text("import os; home = os.environ.get('HOME')")
    client.prepare(
        "import os, sys\n"
        "print(preloaded('later'), file=sys.stderr)\n"
        "kept = dict(os.environ); os.environ.clear(); os.environ.update(kept)\n"
        "import later\n",
        env={"PYTHONPATH": f"{SITE}:{packages}", "HOME": "/somewhere"},
    )
    client.ready()
    client.round(learn=True)
    client.until("renewed")
    client.round()
    assert client.path(0, "err").read_text() == "True\n"


def test_a_variable_that_the_script_sets_to_what_it_was(client, packages):
    """The variable may differ at the next launch."""
    (packages / "later.py").write_text("import os; mode = os.environ.get('MODE')")
    client.prepare(
        "import os, wave\nos.environ['MODE'] = 'fast'\nimport later\n",
        env={"PYTHONPATH": f"{SITE}:{packages}", "MODE": "fast"},
    )
    client.ready()
    client.round(learn=True)
    event = client.until("passed-over")
    assert (event["module"], event["why"]) == ("later", "it reads MODE, which the script sets")


def test_a_module_in_a_package_without_a_file_of_its_own(client, packages):
    """Others of that name are other people's."""
    (packages / "shared").mkdir()
    (packages / "shared" / "awkward.py").write_text("print('hello')")
    (packages / "shared" / "good.py").write_text("")
    client.prepare(
        "import sys\n"
        "print(preloaded('shared.good'), file=sys.stderr)\n"
        "import shared.awkward, shared.good\n",
        env={"PYTHONPATH": f"{SITE}:{packages}"},
    )
    client.ready()
    client.round(learn=True)
    assert client.until("passed-over")["module"] == "shared.awkward"
    client.until("renewed")
    client.round()
    assert client.path(0, "err").read_text() == "True\n"


NOT_FOR_ALL = {
    "import threading, time; threading.Thread(target=time.sleep, args=(100,), daemon=True).start()":
        "starts threads",
    "import os; os.environ.get('LOCAL_RANK')": "reads LOCAL_RANK",
    "import random; random.seed(1)": "seeds the generator of random",
    "import torch; torch.manual_seed(1)": "seeds the generator of torch",
    "import random; random.random()": "",
    "print('hello')": "writes to the standard output",
    "import os; os.cpu_count = lambda: 1": "replaces os.cpu_count",
    "import textwrap; textwrap.dedent = lambda text: text": "replaces textwrap.dedent",
    "import tempfile; f = tempfile.TemporaryFile()": "opens",
    "import os; main_pid = os.getpid()": "awkward.main_pid is the process id",
    "raise ValueError('not today')": "ValueError: not today",
    "import os\nif 'RANK' not in os.environ: raise SystemExit(3)": "SystemExit: 3",
}  # fmt: skip


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(source, marks=[pytest.mark.torch] if "torch" in source else [])
        for source in NOT_FOR_ALL
    ],
)
def test_what_is_left_to_each_worker(client, packages, source):
    """The rest is learned all the same."""
    (packages / "awkward.py").write_text(source)
    client.prepare(
        "import sys, textwrap\n"
        "print(preloaded('awkward'), preloaded('wave'), file=sys.stderr)\n"
        "try: import awkward\n"
        "except ValueError: sys.modules['awkward'] = sys\n"
        "import wave\n",
        env={"PYTHONPATH": f"{SITE}:{packages}"},
    )
    client.ready()
    client.round(learn=True)
    if (why := NOT_FOR_ALL[source]) and not why.startswith("ValueError"):
        event = client.until("passed-over")
        assert (event["module"], why in event["why"]) == ("awkward", True), event
    client.until("renewed")
    client.round()
    assert client.path(0, "err").read_text().endswith(f"{not why} True\n")


def test_a_renewed_template_keeps_a_modules_threshold_of_collections(client, packages):
    (packages / "tuning.py").write_text("import gc; gc.set_threshold(5000)")
    client.prepare(
        "import gc, sys\n"
        "print(preloaded('tuning'), file=sys.stderr)\n"
        "import tuning\n"
        "print(gc.get_threshold()[0])\n",
        env={"PYTHONPATH": f"{SITE}:{packages}"},
    )
    client.ready()
    client.round(learn=True)
    client.until("renewed")
    assert client.round() == ["5000\n"]
    assert client.path(0, "err").read_text() == "True\n"


def test_a_number_that_a_module_draws_after_the_script_has_seeded(client, packages):
    (packages / "drawing.py").write_text("import random; random.random()")
    client.prepare(
        "import random; random.seed(7)\nimport drawing\nprint(random.random())\n",
        env={"PYTHONPATH": f"{SITE}:{packages}"},
    )
    client.ready()
    first = client.round(learn=True)
    assert "which the script has seeded" in client.until("passed-over")["why"]
    assert client.round() == first


def test_generators_that_modules_make_for_themselves(client, packages):
    (packages / "drawing.py").write_text(
        "import random\n"
        "ids, seeded, again = random.Random(), random.Random(7), random.Random()\n"
        "again.seed(7)\n"
    )
    client.prepare(
        "import random, sys\n"
        "print(preloaded('drawing'), random.Random.seed.__name__)\n"
        "import drawing\n"
        "print(drawing.ids.random(), drawing.seeded.random(), drawing.again.random())\n",
        env={"PYTHONPATH": f"{SITE}:{packages}"},
    )
    client.ready()
    client.round(learn=True)
    client.until("renewed")
    drawn = client.round(workers=3) + client.round()
    assert {line.splitlines()[0] for line in drawn} == {"True seed"}
    numbers = [line.splitlines()[1].split() for line in drawn]
    assert len({number for number, _, _ in numbers}) == 4
    assert {number for _, *others in numbers for number in others} == {f"{Random(7).random()}"}


@pytest.mark.torch
def test_functions_that_are_noted_can_be_pickled(with_torch):
    """A DataLoader pickles them if it spawns its workers with them."""
    old = with_torch.template()
    (output,) = with_torch.round(
        "import copy, os, pickle, random, numpy, torch\n"
        "seeds = torch.manual_seed, torch.random.manual_seed, numpy.random.seed, random.seed\n"
        "assert seeds[0] is seeds[1]\n"
        "for seed in seeds:\n"
        "    print(copy.deepcopy(seed).__name__, pickle.loads(pickle.dumps(seed)).__name__)\n"
        "pickle.loads(pickle.dumps(os.putenv))('HERE', '1')\n",
        learn=True,
    )
    with_torch.until("renewed")
    eventually(lambda: old not in with_torch.others())
    assert output.splitlines() == 2 * ["manual_seed manual_seed"] + 2 * ["seed seed"]


def test_modules_of_the_scripts_own_are_not_learned(client):
    """Such modules may have changed before the next start."""
    client.prepare("import sys\nprint(preloaded('own'))\nimport own, wave\n")
    (client.script.parent / "own.py").write_text("")
    client.ready()
    assert client.round(learn=True) == ["False\n"]
    client.until("renewed")
    assert client.round() == ["False\n"]


def test_what_a_renewed_template_holds(client):
    """The new template is like the first one, which has ended."""
    client.prepare("import wave\n")
    client.ready()
    old = client.template()
    client.round(learn=True)
    client.until("renewed")
    eventually(lambda: old not in client.others())
    (new,) = client.others()
    assert new.name() == "hpclaunch-torch"
    assert [word for word in new.cmdline() if word] == ["hpclaunch-torch"]
    assert new.num_threads() == 1
    client.round(learn=True)
    new.kill()
    assert client.until("template")["state"] == "none"
    client.ready()
    client.until("renewed")  # the next one knows it as well
    assert client.round() == [""]


def test_nobody_waits_for_a_successor_of_a_round_that_runs(client, packages):
    (packages / "slow.py").write_text("import time; time.sleep(1000)")
    client.prepare(
        "import sys; sys.modules['time'].sleep = lambda seconds: None\nimport time, slow\n",
        env={"PYTHONPATH": f"{SITE}:{packages}"},
    )
    client.ready()
    template = client.template()
    client.round(learn=True)
    eventually(lambda: len(client.others()) == 2)
    assert template in client.others()
    assert client.round() == [""]  # a start takes what there is


@pytest.mark.usefixtures("_impatient")
def test_a_start_does_not_wait_for_ever(client, packages):
    """A module may hang in the template; the worker imports it itself, or hangs as well."""
    (packages / "slow.py").write_text(
        "import os, time\nif 'RANK' not in os.environ: time.sleep(1000)"
    )
    client.prepare(
        "import sys; print(preloaded('slow'))\n",
        env={"PYTHONPATH": f"{SITE}:{packages}"},
        steps=[["import", "slow", str(packages / "slow.py")]],
    )
    assert client.round() == ["False\n"]


def test_a_module_that_fails_and_leaves_a_thread(client):
    (client.tmp_path / "awkward.py").write_text(f"{next(iter(UNFIT))}; raise ValueError")
    print_modules = "import sys; print(preloaded('torch'))"
    client.prepare(print_modules, "awkward", env={"PYTHONPATH": f"{SITE}:{client.tmp_path}"})
    assert client.round() == ["True\n"]
    assert client.until("passed-over")["why"] == "ValueError: "
    assert "threads" in client.until("passed-over")["why"]


def test_a_module_that_is_not_there_is_passed_over(client):
    client.prepare("import sys; print(preloaded('wave'))\n", "nowhere", "wave")
    assert client.round() == ["True\n"]
    event = client.until("passed-over")
    assert (event["module"], event["why"]) == (
        "nowhere",
        "ModuleNotFoundError: No module named 'nowhere'",
    )


@pytest.mark.parametrize("name", ["random", pytest.param("numpy", marks=pytest.mark.torch)])
def test_a_module_beside_the_script_that_torch_imports_too(client, name):
    client.prepare(f"import {name}; print({name}.WHOSE)\n")
    client.script.with_name(f"{name}.py").write_text("WHOSE = 'the user'\n")
    assert client.round() == ["the user\n"]
    event = client.until("template")
    assert event["state"] == "unfit"
    assert f"{name}.py stands in for the {name}" in event["why"]


def test_without_torch_workers_start_cold(client):
    (client.tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    env = {"PYTHONPATH": f"{SITE}:{client.tmp_path}"}
    client.prepare("print('cold')\n", env=env)
    assert client.round(store=True) == ["cold\n"]
    event = client.until("template")
    assert (event["state"], event["why"]) == ("dead", "ImportError: no torch here")
    client.path(0, "out").unlink()
    assert client.round(store=True) == ["cold\n"]
    assert all(event["event"] != "store-exit" for event in client.events)


def test_without_torch_nobody_waits_for_a_store(client):
    """A program of the user's may have a torch of its own."""
    (client.tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    client.prepare("", env={"PYTHONPATH": f"{SITE}:{client.tmp_path}"})
    port = client.ask(sh("sleep 600"), store=True)
    client.until("template")
    with socket.create_connection(("127.0.0.1", port)):
        assert client.until("store-exit")["why"] == "ImportError: no torch here"


def test_command_lines_that_differ_before_the_script(client):
    client.prepare("print('of the template')\n")
    client.ready()
    client.start(python(f"{PRELOADED}print(preloaded('torch'))"), warm=True)
    client.until("gone")
    assert client.path(0, "out").read_text() == "False\n"


def test_a_stop_while_torch_is_imported(client, slow_torch):
    client.prepare("print('started')\n")
    client.ask(client.command(), warm=True)
    client.server.send(Stop(signal.SIGTERM))
    client.until("gone")
    slow_torch.touch()
    assert client.ready().events == []
    assert not client.path(0, "out").exists()


@pytest.mark.usefixtures("_patient")
def test_a_stop_while_workers_are_forked(client):
    """Every worker stops, even one that has no handlers yet."""
    client.prepare(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(4))\n"
        "time.sleep(600)\n"
    )
    client.ready()
    for _ in range(5):
        client.ask(*[client.command()] * 3, warm=True)
        client.server.send(Stop(signal.SIGTERM))
        assert {client.until("exit")["code"] for _ in range(3)} <= {4, 128 + signal.SIGTERM}
        client.until("gone")


@pytest.mark.usefixtures("_impatient")
def test_a_stop_while_the_template_hangs(client):
    """The template is ended, and forks no worker afterwards."""
    client.prepare("print('started')\n")
    template = client.ready().template()
    template.suspend()
    client.ask(client.command(), warm=True)
    client.server.send(Stop(signal.SIGTERM))
    assert client.until("exit")["code"] == 128 + signal.SIGKILL
    client.until("gone")
    assert not client.path(0, "out").exists()
    assert client.round() == ["started\n"]


@pytest.mark.parametrize("store", [False, True])
def test_a_template_that_is_suspended_takes_a_large_request(client, store):
    """The socket takes only a part of the request until the template continues."""
    client.prepare("import os; print(len(os.environ['LARGE3']))\n")
    client.ready()
    template = client.template()
    template.suspend()
    large = {f"LARGE{number}": "x" * 100_000 for number in range(10)}
    client.ask(client.command(), warm=True, env=client.env | large, store=store)
    time.sleep(0.5)  # until the socket is full
    template.resume()
    client.until("gone")
    assert client.path(0, "out").read_text() == "100000\n"


@pytest.mark.usefixtures("_impatient")
def test_the_agent_dies_while_the_template_hangs(client, monkeypatch):
    monkeypatch.setattr(fork_server_client, "GONE_LIMIT", LIMIT)
    client.prepare("print('started')\n")
    template = client.ready().template()
    template.suspend()
    client.ask(client.command(), warm=True)
    client.server.close()
    assert client.server._process.returncode == 0
    assert not template.is_running()
    assert not client.path(0, "out").exists()


def test_a_killed_template_is_replaced(client):
    client.prepare("import sys; print(preloaded('torch'))\n")
    template = client.ready().template()
    template.kill()
    event = client.until("template")
    assert (event["state"], event["why"]) == ("none", "SIGKILL")
    assert client.round(workers=2) == ["True\n"] * 2
    assert client.template().pid != template.pid


def test_workers_outlive_a_killed_template(client):
    client.prepare("import time; print('up'); time.sleep(600)\n")
    template = client.ready().template()
    client.start(client.command(), warm=True)
    wait_for(client.path(0, "out"))
    template.kill()
    assert client.until("template")["state"] == "none"
    assert client.ready().events == []
    client.server.send(Kill())
    client.until("gone")


def test_signals_meant_for_the_agent(client):
    """scancel sends its signal to every process of the step; a worker has what the user set."""
    client.prepare(
        "import signal, sys\nfor s in (15, 2, 1, 10): print(signal.getsignal(s))\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), sys.argv)\n"
    )
    default = signal.SIG_DFL
    expected = [f"{s}\n" for s in (default, signal.default_int_handler, default, default)]
    template = client.template()
    for _ in range(2):
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            template.send_signal(signum)
        (written,) = client.round()
        assert written == "".join(expected) + f"set() {[str(client.script)]}\n"
    assert template.is_running()


def test_idle_workers_are_ended_and_busy_ones_left(client):
    client.prepare(
        "import signal, sys, time, pathlib\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('up')\n"
        "with open(sys.argv[1], 'wb') as f:\n"
        "    while sys.argv[2:]: f.write(bytes(1 << 18)); f.flush(); f.seek(0); time.sleep(0.01)\n"
        "time.sleep(600)\n"
    )
    scratch = str(client.tmp_path / "scratch")
    client.ready().start(client.command(scratch), client.command(scratch, "busy"), warm=True)
    for rank in (0, 1):
        wait_for(client.path(rank, "out"))
    client.server.send(Stop(signal.SIGTERM))

    def look_once_one_has_written():
        """Whatever the machine does meanwhile: one of the workers is busy between two looks."""
        written = {os.stat(scratch).st_mtime_ns}
        eventually(lambda: len(written) > 2 or written.add(os.stat(scratch).st_mtime_ns))
        client.kill_idle()
        if select.select([client.server], [], [], 0.5)[0]:
            client.hear()

    while not [event for event in client.events if event["event"] == "exit"]:
        look_once_one_has_written()  # the other one may be about to fall asleep at first
    exited = client.until("exit")
    assert (exited["rank"], exited["signal"]) == (0, signal.SIGKILL)
    look_once_one_has_written()
    assert client.events == []
    client.server.send(Kill())
    assert client.until("exit")["rank"] == 1


def test_nothing_outlives_a_killed_fork_server(client):
    client.prepare("import time; print('up'); time.sleep(600)\n")
    client.ready().start(client.command(), warm=True, store=True)
    wait_for(client.path(0, "out"))
    processes = psutil.Process(client.pid).children(recursive=True)
    assert len(processes) == 3
    os.kill(client.pid, signal.SIGKILL)
    assert all(gone(process.pid) for process in processes)


# The store

USE = (
    "import sys; from torch.distributed import TCPStore\n"
    "s = TCPStore('127.0.0.1', int(sys.argv[1]), is_master=False)\n"
    "print(s.check(['key'])); s.set('key', 'v')"
)


@pytest.mark.torch
@pytest.mark.parametrize("now", [True, False])
@pytest.mark.parametrize("warm", [True, False])
def test_a_store_for_every_round(client, now, warm):
    """Workers may connect before torch is there; the second has nothing of the first."""
    client.prepare(USE, now=now)
    for _ in range(2):
        client.start(client.command("PORT"), store=True, warm=warm, env=PATH)
        assert client.until("exit")["code"] == 0, client.path(0).read_text()
        client.until("gone")
    assert client.path(0, "out").read_text() == "False\nFalse\n"
    eventually(lambda: len(client.others()) == 2)  # the template, and the last store


def test_nobody_pays_for_a_store_that_nobody_uses(client):
    client.prepare("", now=False)
    client.start(sh("exit 0"), store=True)
    client.until("gone")
    assert client.others() == []


@pytest.mark.torch
def test_signals_meant_for_the_agent_leave_the_store_alone(with_torch):
    client = with_torch
    client.events.clear()
    client.round(store=True)
    _, store = client.others()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        store.send_signal(signum)
    time.sleep(0.2)
    assert store.is_running()
    assert store.status() != psutil.STATUS_ZOMBIE
    client.until("exit")
    assert client.events == []


def test_a_store_that_ends_is_reported(client):
    client.prepare("")
    client.ready().round(store=True)
    client.others()[1].kill()
    event = client.until("store-exit")
    assert (event["code"], event["signal"], event["why"]) == (137, signal.SIGKILL, "")


def test_a_store_whose_torch_fails_is_reported(client):
    (client.tmp_path / "torch.py").write_text("raise RuntimeError('a broken torch')\n")
    client.prepare("", env={"PYTHONPATH": f"{SITE}:{client.tmp_path}"})
    client.start(sh("exit 0"), store=True)
    assert client.until("store-exit")["why"] == "RuntimeError: a broken torch"


def test_a_template_that_is_killed_while_it_forks_the_store(client):
    """Whoever connected would wait for a store that nobody serves."""
    client.prepare("")
    client.ready().template().suspend()
    port = client.ask(sh("sleep 600"), store=True)
    client.until("started")
    client.template().kill()
    event = client.until("store-exit")
    assert (event["port"], event["why"]) == (
        port,
        "cannot start the store process: the template process was killed",
    )


BROKEN = """
import torch.distributed as dist

class Store(dist.TCPStore):
    def __init__(self, *args, use_libuv=True, master_listen_fd=None, **more):
        if use_libuv and master_listen_fd is not None:
            raise NotImplementedError("libuv with an listen fd")
        super().__init__(*args, use_libuv=use_libuv, master_listen_fd=master_listen_fd, **more)

dist.TCPStore = Store
"""


@pytest.mark.torch
def test_a_torch_whose_libuv_takes_no_socket(client):
    """This is so before torch 2.8."""
    (client.tmp_path / "older.py").write_text(BROKEN)
    path = {"PYTHONPATH": f"{SITE}:{client.tmp_path}"}
    client.prepare(USE, "older", env=path)
    client.ready().start(client.command("PORT"), store=True, warm=True, env=PATH)
    assert client.until("exit")["code"] == 0, client.path(0).read_text()
    assert client.path(0, "out").read_text() == "False\n"
