"""Modules that a warm worker has not imported, and its replacement by a new interpreter."""

import json
import signal

import pytest
from serving import eventually
from templates import Warm, WithTorch

from surroundings import LIGHT_TORCH

pytestmark = pytest.mark.starts

# Statements of a script: what they show, and whether torch is there after each.
STATEMENTS = """
import sys, abc, asyncio, dataclasses, importlib.metadata, inspect, json, logging, pickle, typing
import importlib.util; seen = importlib.util.find_spec("torch"); show(seen.name, seen.origin)
import numpy, sympy, typing_extensions
import types; sys.modules.setdefault("cython_runtime", types.ModuleType("cython_runtime"))
from torch import nn; show(nn.__spec__.loader is nn.__loader__)
import torch, pickle; show(pickle.loads(pickle.dumps(torch.Tensor)).__module__)
import torch.distributed as dist; show(dist.__spec__.name)
import torch.utils.data, torch.optim
import importlib, torch.version; show(importlib.reload(torch.version) is torch.version)
import torch._dynamo
"""
ENTRIES = ("import torch.nn.functional as F", "import functorch", "from torch.optim import SGD")
SHOWS = """
import sys
statements, to = sys.argv[1:]
shown = []
def show(*what): shown.append(what)
for statement in open(statements):
    exec(statement)
    show("torch" in sys.modules, "torch.nn" in sys.modules)
import json
json.dump(shown, open(to, "w"))
"""


@pytest.mark.torch
def test_torch_is_there_once_the_script_has_imported_it(tmp_path):
    """Warm and cold workers have the same modules, whatever the script imports first."""
    client = WithTorch(tmp_path)
    scripts = [STATEMENTS.strip(), *ENTRIES]
    for number, statements in enumerate(scripts):
        (tmp_path / f"{number}").write_text(statements)
    found = {}
    for warm in (True, False):
        files = [tmp_path / f"{number}-{warm}" for number in range(len(scripts))]
        commands = [
            client.command(SHOWS, str(tmp_path / f"{number}"), str(file))
            for number, file in enumerate(files)
        ]
        # Cold workers have the hooks too.
        client.start(*commands, warm=warm, env={**client.env, "HPCLAUNCH_STORE": "localhost:1"})
        client.until("gone")
        assert [client.path(number).read_text() for number in range(len(scripts))] == [""] * 4
        found[warm] = [json.loads(file.read_text()) for file in files]
    client.server.close()
    assert found[True] == found[False]


SCRIPT = """
import os, sys
def is_parked(): return any(getattr(finder, "is_parked", False) for finder in sys.meta_path)
print(os.getpid(), is_parked())
{}
import torch
print(os.getpid(), is_parked())
"""
GIVEN = {"OMP_NUM_THREADS": "1", "KMP_BLOCKTIME": "0"}
CHANGES = [
    "os.environ['OMP_NUM_THREADS'] = '3'",
    "os.environ.setdefault('MKL_NUM_THREADS', '3')",
    "os.environ.update(OMP_NUM_THREADS='3')",
    "os.environ |= {'OMP_NUM_THREADS': '3'}",
    "os.environb[b'OMP_NUM_THREADS'] = b'3'",
    "os.putenv('OMP_NUM_THREADS', '3')",
    "os.environ.pop('KMP_BLOCKTIME')",
    "del os.environ['KMP_BLOCKTIME']",
    "os.unsetenv('KMP_BLOCKTIME')",
    "import settings",
    "from sets_it_when_called import do; do()",  # as load_dotenv does
    "for line in ['OMP_NUM_THREADS=3']: os.environ.__setitem__(*line.split('='))",
    "import threading; t = threading.Thread(target=os.putenv, args=('OMP_NUM_THREADS', '3'))\n"
    "t.start(); t.join()",
    "sys.path.insert(0, os.path.dirname(__file__) + '/library')",
    "import types; sys.modules['pkgutil'] = types.ModuleType('pkgutil')",
]
NO_CHANGES = [
    "",
    "os.environ['OMP_NUM_THREADS'] = '1'",
    "os.environ.setdefault('OMP_NUM_THREADS', '3')",
    "os.environ['MASTER_ADDR'] = 'localhost'",
    "os.environ['NOBODYS'] = '1'",
    "import torch\nos.environ['OMP_NUM_THREADS'] = '3'",
    "sys.path.append(os.path.dirname(__file__) + '/library')",
    "import importlib.util; importlib.util.find_spec('torch')",
    "sys.path.insert(0, os.path.dirname(__file__) + '/link')",  # to where torch is
    "import sets_it_for_itself",  # as scikit-learn does
]


@pytest.fixture
def client(tmp_path):
    installed = tmp_path / "site-packages"
    installed.mkdir()
    setting = f"import os; {CHANGES[0]}\n"
    (installed / "sets_it_for_itself.py").write_text(setting)
    (installed / "sets_it_when_called.py").write_text(f"import os\ndef do(): {CHANGES[0]}\n")
    client = Warm(tmp_path, [LIGHT_TORCH, str(installed)])
    client.library = tmp_path / "app" / "library"
    client.library.mkdir(parents=True)
    (client.library / "pkgutil.py").write_text("")
    client.library.with_name("settings.py").write_text(setting)
    client.library.with_name("link").symlink_to(LIGHT_TORCH)
    yield client
    client.server.close()


def written_by(client, sources):
    """Run one worker with each of the scripts; return what each has written, as words by line."""
    client.prepare(
        "import sys; exec(compile(open(sys.argv[1]).read(), 'train.py', 'exec'))\n", env=GIVEN
    )
    client.ready()
    commands = []
    for number, source in enumerate(sources):
        file = client.tmp_path / f"{number}.py"
        file.write_text(source)
        commands.append(client.command(str(file)))
    client.start(*commands, warm=True, env=client.env)
    client.until("gone")
    written = [client.path(number, "out").read_text() for number in range(len(commands))]
    return [[line.split() for line in text.splitlines()] for text in written]


def test_a_worker_that_changes_something_before_torch_becomes_a_new_interpreter(client):
    written = written_by(client, map(SCRIPT.format, CHANGES))
    for change, lines in zip(CHANGES, written, strict=True):
        assert [line[1] for line in lines] == ["True", "False", "False"], change
        assert len({line[0] for line in lines}) == 1, change  # the process is the same
    restart = client.until("restart")
    assert not restart["forked"]
    assert sum(event["event"] == "restart" for event in client.events) == 0  # it is reported once
    # The later rounds start cold at once, and nobody needs the template.
    eventually(lambda: client.others() == [])
    (client.tmp_path / "0.py").write_text(SCRIPT.format(""))
    (text,) = client.round(str(client.tmp_path / "0.py"))
    assert [line.split()[1] for line in text.splitlines()] == ["False", "False"]


def test_a_worker_that_changes_nothing_that_matters_stays(client):
    written = written_by(client, map(SCRIPT.format, NO_CHANGES))
    for change, lines in zip(NO_CHANGES, written, strict=True):
        assert [line[1] for line in lines] == ["True", "False"], change
    assert sum(event["event"] == "restart" for event in client.events) == 0


def test_where_the_change_was(client):
    written_by(client, [SCRIPT.format(CHANGES[0])])
    restart = client.until("restart")
    assert (restart["kind"], restart["name"]) == ("variable", "OMP_NUM_THREADS")
    assert (restart["file"], restart["line"]) == ("train.py", 5)


def test_a_process_that_a_worker_has_forked_only_reports(client):
    source = (
        "pid = os.fork()\nif pid: os.waitpid(pid, 0)\nelse: os.environ['OMP_NUM_THREADS'] = '3'"
    )
    (lines,) = written_by(client, [SCRIPT.format(source)])
    assert [line[1] for line in lines] == ["True", "False", "False"]
    assert client.until("restart")["forked"]


TALKS = """
import os, sys
os.environ["TALKS"] = "1"; print("said"); sys.stderr.write("e")
__path__ = [os.path.join({light!r}, "torch")]
with open(os.path.join(__path__[0], "__init__.py")) as f: exec(f.read())
"""
SHOWS_TALKS = "import os; print('TALKS' in os.environ)\nimport torch; print('TALKS' in os.environ)"


def test_what_torch_sets_and_writes_comes_with_its_import(tmp_path):
    (tmp_path / "library" / "torch").mkdir(parents=True)
    (tmp_path / "library" / "torch" / "__init__.py").write_text(TALKS.format(light=LIGHT_TORCH))
    (tmp_path / "library" / "early.py").write_text("print('hello')")
    client = Warm(tmp_path, [str(tmp_path / "library")])
    client.prepare(SHOWS_TALKS, "early", env=GIVEN)
    assert client.ready().round() == ["hello\nFalse\nsaid\nTrue\n"]
    assert client.path(0).read_text() == "e"
    client.server.close()


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        pytest.param("os.close(1)", "out", id="closed"),
        pytest.param("os.rename(file, file + '.old'); os.mkdir(file)", "out.old", id="moved"),
    ],
)
def test_a_new_interpreter_has_its_output_whatever_the_script_has_done(client, changes, kind):
    client.prepare(
        "import gc, os\n"
        "if gc.get_freeze_count():\n"
        f"    file = os.readlink('/proc/self/fd/1'); {changes}\n"
        "    os.environ['OMP_NUM_THREADS'] = '7'\n"
        "os.write(1, b'written'); print(os.fstat(1).st_size)\n"
    )
    client.ready().start(client.command(), warm=True, env=client.env)
    assert client.until("exit")["code"] == 0
    assert client.path(0, kind).read_text() == "written7\n"
    client.until("gone")


def test_a_worker_begins_anew_as_it_began(client):
    """Arguments, directory, signals, CPUs and streams stay the same, even if another thread changes
    something."""
    client.prepare(
        "import gc, os, signal, sys, threading\n"
        "print(sys.argv[1:], os.getcwd() == '/', os.umask(0), signal.getsignal(10),\n"
        "      signal.pthread_sigmask(signal.SIG_BLOCK, ()), len(os.sched_getaffinity(0)))\n"
        "if gc.get_freeze_count():\n"
        "    os.chdir('/')\n"
        "    signal.signal(10, signal.SIG_IGN); signal.alarm(600)\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})\n"
        "    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "    null = os.open(os.devnull, os.O_WRONLY); os.dup2(null, 1); os.dup2(null, 2)\n"
        "    t = threading.Thread(target=os.putenv, args=('OMP_NUM_THREADS', '7'))\n"
        "    t.start(); t.join()\n"
        "print(signal.alarm(0)); os.kill(os.getppid(), 0); print(os.getsid(0) == os.getpid())\n"
        "import ctypes; died = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(died))\n"
        "print(died.value)\n"
    )
    (text,) = client.ready().round("a b", "")
    first, second, *rest = text.splitlines()
    assert first == second
    assert first.startswith("['a b', ''] False ")
    assert rest == ["0", "True", str(int(signal.SIGKILL))]
