"""A worker is what `python -u script` would be: no script can detect how it was started.

Each case runs the same command under an interpreter, which is the reference, and under hpclaunch;
some under torchrun too. `conformance/probe.py` reports several hundred facts of its
process; all of them must be equal, but for those that docs/inside-workers.md names. Warm workers
are forked from a process that has torch. In most cases this is a package of the same name and
shape, for both; in those marked `torch` it is the real one. torch.compile, which takes many
seconds, is in test_warm_start.py.
"""

import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import zipfile

import pytest
from conformance.launchers import FILES, Launchers, by_hand, text
from conformance.page import table
from launching import HPCLAUNCH, LIMIT, hpclaunch, without_load

from hpclaunch.cli import shim
from hpclaunch.system.processes.fork_server_client import SITE
from hpclaunch.worker.site._hpclaunch_layout import HIGH
from surroundings import LIGHT_TORCH, SHORT, environment

pytestmark = pytest.mark.starts

OURS = [
    "_hpclaunch_errors",
    "_hpclaunch_hooks",
    "_hpclaunch_output",
    "_hpclaunch_ownership",
    "_hpclaunch_progress",
]
# Debian's Python imports one of its own, so that a script cannot have another.
OF_DEBIAN = ["sitecustomize"] if "sitecustomize" in sys.modules else []
# Modules that Python itself no longer imports at its start, from 3.14 on.
LATE = {"module._typing", "module.array", "module.io", "module.typing"}
CONTRACT = "another value at every launch, in torchrun's contract too"
HIGHEST = max(n for n in HIGH if n < resource.getrlimit(resource.RLIMIT_NOFILE)[0])
SESSION = "a worker and all it starts are ended as a group; torchrun's workers lead sessions too"
UNSEEN = {"sys.stdout", "sys.stderr"}  # by the probe
# The page says of each why it may differ from Python's: under hpclaunch, and with a warm start.
ALLOWED = table("From the first line") - UNSEEN - {"fd.900"} | {f"fd.{HIGHEST}"}
WARM = table("Warm workers") - {"meta_path._hpclaunch_parking.Parking"}  # torch is imported
TORCHRUNS = {  # fact: how torchrun's workers differ from python's
    "environ.MASTER_ADDR": "the host's name",
    "environ.MASTER_PORT": CONTRACT,
    "environ.TORCHELASTIC_ERROR_FILE": CONTRACT,
    "fd.1": "its log files are not open for appending",
    "fd.2": "its log files are not open for appending",
    "leads its group": SESSION,
    "leads its session": SESSION,
}
OLDER = {  # fact: how those of an older torchrun differ beside that
    "environ.TORCHELASTIC_SIGNALS_TO_HANDLE": "not set",
    "environ.TORCHELASTIC_USE_AGENT_STORE": "False: rank 0 holds the store itself",
}


def differences(reference, other):
    """{fact: (the reference's, the other's)}, without those that no two processes share."""
    names = {name for name in reference.keys() | other.keys() if not name.startswith("own.")}
    names -= LATE if sys.version_info >= (3, 14) else set()
    pairs = {name: (reference.get(name, "-"), other.get(name, "-")) for name in names}
    return {name: pair for name, pair in sorted(pairs.items()) if pair[0] != pair[1]}


def assert_same(reference, other, allowed=()):
    """Assert that two runs wrote the same output and reported the same facts."""
    assert (other.out, other.err) == (reference.out, reference.err)
    assert len(other.facts) == len(reference.facts)
    for rank, (facts, others) in enumerate(zip(reference.facts, other.facts, strict=True)):
        lines = [
            f"rank {rank}: {name}: {a!r} under python, {b!r} here"
            for name, (a, b) in differences(facts, others).items()
            if name not in allowed
        ]
        assert not lines, "\n".join(lines)


WITH_TORCH = ("at_exit", "segfault_with_traceback", "what_is_left")  # ends
TORCH = {  # how a script comes to have torch, so that it is started warm
    "probe.py": ("AT_START =", "import torch.distributed\n\nAT_START ="),
    # Most are quicker without it, and start warm all the same. A few ends show that it is there.
    "children.py": ('LEVEL = "', 'if not sys.argv:\n    import torch\n\nLEVEL = "'),
    "endings.py": (
        "\n\nif __name__",
        f"\n\nif sys.argv[1] in {WITH_TORCH}:\n    import torch\n\nif __name__",
    ),
}
both = pytest.mark.parametrize("start", ["cold", "warm"])


def cold_and_warm(cases, real):
    """Return each case with both starts. The warm ones of `real` have the real torch."""
    return [
        pytest.param(
            case,
            start,
            id=f"{getattr(case, '__name__', case)}-{start}",
            marks=[pytest.mark.torch] if start == "warm" and case in real else [],
        )
        for case in cases
        for start in ("cold", "warm")
    ]


def place(directory, name, file="probe.py", start="cold"):
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (FILES / file).read_text()
    path.write_text(text.replace(*TORCH[file], 1) if start == "warm" else text)
    return path


@pytest.fixture(autouse=True)
def _torch(request, monkeypatch):
    """Let everything find the light torch, unless the test needs the real one."""
    if not request.node.get_closest_marker("torch"):
        monkeypatch.setenv("PYTHONPATH", LIGHT_TORCH)


SOCKETS = {"TMPDIR": SHORT}  # multiprocessing has some there


@pytest.fixture
def here(tmp_path):
    cwd = tmp_path / "the project"
    cwd.mkdir()
    return cwd


# The facts


@pytest.fixture(scope="module")
def plain(tmp_path_factory, torchruns):
    """`LAUNCHER script` with two workers, under all three."""
    directory = tmp_path_factory.mktemp("plain")
    script = place(directory, "train.py")
    launchers = Launchers(directory, directory / "left")
    words = (script, "-u", "--lr=1", "x y", "")
    return {
        "python": launchers.python(*words, workers=2),
        "torchrun": launchers.torchrun(torchruns, *words, workers=2),
        "hpclaunch": launchers.hpclaunch(*words, workers=2),
    }


@pytest.mark.torch
def test_facts(plain):
    assert_same(plain["python"], plain["hpclaunch"], ALLOWED)
    assert [run.code for run in plain.values()] == [0, 0, 0]
    assert len(plain["python"].facts[0]) > 400


@pytest.mark.torch
def test_every_allowed_difference_occurs(plain):
    found = differences(plain["python"].facts[0], plain["hpclaunch"].facts[0])
    assert sorted(found) == sorted(ALLOWED)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two workers with torch that train after they have written their facts: under an interpreter,
    and under hpclaunch with both starts."""
    directory = tmp_path_factory.mktemp("trained")
    script = place(directory, "train.py", start="warm")
    script.write_text(script.read_text() + (FILES / "training.py").read_text())
    words = (script, "-u", "--lr=1", "x y", "")
    cold, warm = (
        Launchers(
            directory, directory / start, start=start, env=SOCKETS, reports=directory / "reports"
        )
        for start in ("cold", "warm")
    )
    return {
        "python": cold.python(*words, workers=2),
        "cold": cold.hpclaunch(*words, workers=2),
        "warm": warm.hpclaunch(*words, workers=2),
    }


@pytest.mark.torch
def test_facts_of_a_warm_start(trained):
    python, hpclaunch = trained["python"], trained["warm"]
    assert_same(python, hpclaunch, ALLOWED | WARM | {"torch was there"})
    assert len(python.facts[0]) > 1000
    found = differences(python.facts[0], hpclaunch.facts[0])
    assert {"gc.frozen", "/proc/self/environ differs"} <= found.keys()
    first, second = hpclaunch.facts
    assert first["own.random"] != second["own.random"]


@pytest.mark.torch
def test_what_torchrun_changes(plain):
    """A reader of ALLOWED sees what torchrun never promised a script, either."""
    for python, torchrun in zip(plain["python"].facts, plain["torchrun"].facts, strict=True):
        assert sorted(differences(python, torchrun).keys() - OLDER) == sorted(TORCHRUNS)


@pytest.mark.torch
@pytest.mark.parametrize("launcher", ["python", "torchrun", "hpclaunch"])
def test_workers_share_nothing_by_chance(plain, launcher):
    """Nobody seeded them: neither hashes nor numbers are those of a common ancestor."""
    first, second = plain[launcher].facts
    own = [name for name in first if name.startswith("own.")]
    assert sorted(own) == ["own.hash", "own.pid", "own.random"]
    assert [name for name in own if first[name] == second[name]] == []


def test_the_probe_sees_a_careless_fork(here, tmp_path):
    """The facts are worth something: a worker that is forked so differs in each of these."""
    script = place(here, "train.py")
    launchers = Launchers(here, tmp_path / "left")
    python, forked = launchers.python(script), launchers.forked(script)
    assert forked.facts, forked.err
    found = differences(python.facts[0], forked.facts[0])
    expected = """__loader__ environ.FORKED fd.3 frames gc.frozen module.csv proc.cmdline
        recursion.depth signal.15 signal.mask status.SigBlk status.SigCgt stdout.write_through
        sys.orig_argv warnings.filters"""
    assert sorted({*expected.split(), "/proc/self/environ differs"} - found.keys()) == []


def a_relative_path(cwd, start):
    place(cwd, "sub/train.py", start=start)
    return ["sub/../sub/train.py"]


def a_link_with_a_strange_name(cwd, start):
    (cwd / "träin ☃'$HOME").symlink_to(place(cwd, "elsewhere/run.py", start=start))
    return ["./träin ☃'$HOME", "größe"]


def a_module(cwd, start):
    place(cwd, "pack/train.py", start=start).with_name("__init__.py").touch()
    return ["-m", "pack.train", "-m", "a"]


def a_package(cwd, start):
    place(cwd, "pack/__main__.py", start=start).with_name("__init__.py").touch()
    return ["-m", "pack", "a"]


def a_directory(cwd, start):
    place(cwd, "app/__main__.py", start=start)
    return ["app"]


def a_zip_app(cwd, start):
    with zipfile.ZipFile(cwd / "app.pyz", "w") as archive:
        archive.write(place(cwd, "probe.py", start=start), "__main__.py")
    return ["app.pyz"]


def an_interpreter_with_options(cwd, start):
    place(cwd, "train.py", start=start)
    return [sys.executable, "-O", "-X", "dev", "train.py", "a"]


WAYS = [
    a_relative_path,
    a_link_with_a_strange_name,
    a_module,
    a_package,
    a_directory,
    a_zip_app,
    an_interpreter_with_options,
]


def compare(cwd, tmp_path, words, start="cold", allowed=(), **more):
    launchers = Launchers(cwd, tmp_path / "left", start=start, **more)
    python = launchers.python(*words)
    hpclaunch = launchers.hpclaunch(*words)
    assert python.code == hpclaunch.code == 0
    assert python.facts, python.err
    expected = ALLOWED | WARM if start == "warm" else ALLOWED
    assert_same(python, hpclaunch, expected.union(allowed))
    if start == "warm":
        assert hpclaunch.facts[0]["gc.frozen"] > 0
    return python, hpclaunch


@pytest.mark.parametrize(("way", "start"), cold_and_warm(WAYS, [a_zip_app]))
def test_ways_to_name_a_script(here, tmp_path, way, start):
    # torch looks for plugins in every entry of sys.path as it is imported, and keeps these open.
    scanned = ["fd.3", "module.encodings.cp437"]
    scanned += ["fd.4"] if sys.version_info >= (3, 14) else []
    is_scanned = (way, start) == (a_zip_app, "warm")
    compare(here, tmp_path, way(here, start), start, scanned if is_scanned else ())


LOW = ("fd.60",)  # in place of HIGHEST: the limit of open files is lower
SETTINGS = {
    "its own": {
        "PYTHONHASHSEED": "7",
        "PYTHONIOENCODING": "latin-1:backslashreplace",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONWARNINGS": "ignore::UserWarning,error::FutureWarning",
        "PYTHONINTMAXSTRDIGITS": "5000",
        "PYTHONNODEBUGRANGES": "1",
    },
    "hpclaunch shim": {
        "PYTHONPATH": f"{shim.DIRECTORY}",
        "PATH": f"{shim.DIRECTORY}{os.pathsep}{os.environ['PATH']}",
    },
    "isolation": {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1", "PYTHONPATH": "a:b::a"},
    "development and locale": {
        "PYTHONDEVMODE": "1",
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONUTF8": "0",
        "TZ": "Asia/Tokyo",
        "größe": "ü",
    },
    "torch's and nobody's": {
        "OMP_NUM_THREADS": "2",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "MKL_DYNAMIC": "0",
        "EMPTY": "",
        "LINES": "a\nb",
        "BYTES": "\udcff",
        "größe": "ü",
    },
    "compilation": {
        "PYTHONOPTIMIZE": "2",
        "PYTHONPYCACHEPREFIX": os.path.join(sys.prefix, "compiled"),  # all of torch, once for all
    },
    "allocation": {"PYTHONTRACEMALLOC": "1"},
}


WITH_REAL_TORCH = ["torch's and nobody's", "compilation", "development and locale"]


@pytest.mark.parametrize(("setting", "start"), cold_and_warm(SETTINGS, WITH_REAL_TORCH))
def test_variables_that_an_interpreter_reads_as_it_starts(here, tmp_path, setting, start):
    words = [place(here, "train.py", start=start)]
    python, hpclaunch = compare(here, tmp_path, words, start, env=SETTINGS[setting])
    if setting == "its own":
        assert python.facts[0]["own.hash"] == hpclaunch.facts[0]["own.hash"]


@both
def test_what_a_process_inherits(here, tmp_path, start):
    """Limits, umask, ignored signals, niceness: the user's, whatever the launcher does with its."""
    before = [sys.executable, FILES / "inheriting.py", ""]
    compare(here, tmp_path, [place(here, "train.py", start=start)], start, LOW, before=before)


@both
def test_signals_that_are_blocked(here, tmp_path, start):
    before = [sys.executable, FILES / "inheriting.py", f"{signal.SIGURG:d},{signal.SIGUSR2:d}"]
    compare(here, tmp_path, [place(here, "train.py", start=start)], start, LOW, before=before)


BEGINS_ANEW = """
import gc, os, signal
if gc.get_freeze_count():  # a warm worker leaves behind what a new interpreter would inherit
    os.umask(0)
    os.chdir("/")
    os.dup2(os.open("/dev/null", os.O_RDWR), 50)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    signal.alarm(600)
def prepare():
    os.environ["OMP_NUM_THREADS"] = "3"
prepare()
"""


def test_a_worker_that_becomes_a_new_interpreter(here, tmp_path):
    """The script sets a variable that torch has read. Nothing is left of the warm process."""
    script = place(here, "train.py", start="warm")
    script.write_text(BEGINS_ANEW + script.read_text())
    launchers = Launchers(here, tmp_path / "left", start="warm")
    python, hpclaunch = (run(script, "a b", "") for run in (launchers.python, launchers.hpclaunch))
    assert_same(python, hpclaunch, ALLOWED)
    assert hpclaunch.facts[0]["environ.OMP_NUM_THREADS"] == "3"
    messages = (tmp_path / "left" / "hpclaunch.err").read_text()
    assert "sets OMP_NUM_THREADS in line 11, before it imports torch" in messages


# Modules

NAMES = """_forkserver agent bootstrap cli config core csv forkserver hooks hpclaunch launcher
msgspec numpy psutil sched site_hooks sitecustomize store system torch train utils worker workers
zmq"""
OF_THE_AGENT = ["hpclaunch", "msgspec", "zmq"]
OF_TORCH = ["csv", "numpy", "sched", "torch"]  # with one of these beside it, a script starts cold


def modules(directory, names):
    directory.mkdir(exist_ok=True)
    for name in names:
        (directory / f"{name}.py").write_text(f"WHOSE = 'of {directory.name}'\n")


@both
def test_the_modules_beside_a_script_are_the_users(here, tmp_path, start):
    names = [*NAMES.split(), "hpclaunch_hooks"]
    if start == "warm":
        names = [name for name in names if name not in OF_TORCH]
    names = [name for name in names if name not in OF_DEBIAN]
    modules(here, names)
    words = [place(here, "start.py", start=start)]
    env = {"CONFORMANCE_IMPORT": ",".join(names)}
    _, hpclaunch = compare(here, tmp_path, words, start, env=env)
    for name in names:
        expected = (str(here / f"{name}.py"), f"of {here.name}")
        assert hpclaunch.facts[0][f"import.{name}"] == repr(expected)


@both
def test_the_modules_of_a_users_path(here, tmp_path, start):
    """The user's PYTHONPATH stays as it was but for our entry, which is not in sys.path."""
    names = [*(n for n in NAMES.split() if n not in OF_THE_AGENT), "usercustomize"]
    if start == "warm":
        names = [name for name in names if name not in OF_TORCH]
    modules(tmp_path / "library", names)
    customize = "import builtins, sys; builtins.CUSTOMIZED = sys.path[:]; print('customized')\n"
    (tmp_path / "library" / "sitecustomize.py").write_text(customize)
    path = f"{tmp_path / 'library'}{os.pathsep}.."
    env = {"CONFORMANCE_IMPORT": ",".join(names), "PYTHONPATH": path}
    words = [place(here, "start.py", start=start)]
    _, hpclaunch = compare(here, tmp_path, words, start, env=env)
    assert hpclaunch.facts[0]["environ.PYTHONPATH"] == f"{SITE}:{path}:{LIGHT_TORCH}"
    assert hpclaunch.out == "customized\n"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            "hpclaunch", marks=pytest.mark.xfail(reason="shadows the command before it can act")
        ),
        *OF_THE_AGENT[1:],
    ],
)
def test_modules_of_a_users_path_that_the_agent_has_too(here, tmp_path, name):
    modules(tmp_path / "library", [name])
    (here / "train.py").write_text(f"import {name}; print({name}.WHOSE)\n")
    env = environment(PYTHONPATH=f"{tmp_path / 'library'}{os.pathsep}{LIGHT_TORCH}")
    done = hpclaunch("--nproc=1", "--log-dir", tmp_path / "logs", "train.py", cwd=here, env=env)
    assert (done.returncode, done.stdout) == (0, "of library\n")


@both
def test_a_users_sitecustomize_that_fails(here, tmp_path, start):
    library = tmp_path / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text("raise ValueError('of the user')\n")
    env = {"PYTHONPATH": str(library)}
    words = [place(here, "start.py", start=start)]
    _, hpclaunch = compare(here, tmp_path, words, start, env=env)
    assert "of the user" in hpclaunch.err


# What Python runs before a script

STARTS = {  # where each is found, beside the site-packages that it adds to sys.path
    "sitecustomize": "library/sitecustomize.py",
    "usercustomize": "user/{site}/usercustomize.py",
    "pth": "user/{site}/of_pth.py",
}
BEFORE = """
import builtins, os, sys
sys.path.append({path!r})
os.environ["SET_BY_{name}"] = os.environ.get("CONFORMANCE_OUT", "") + "/of {name}"
os.environ.pop("UNSET_BY_{name}", None)  # the launcher's own Python has run this too
print("{name} runs, and torch is", "torch" in sys.modules)

class Hook:
    def find_spec(self, name, path=None, target=None):
        hooked = getattr(builtins, "HOOKED", ())
        if name == "torch" and "{name}" not in hooked:  # a warm start asks it in both processes
            builtins.HOOKED = (*hooked, "{name}")

sys.meta_path.insert(0, Hook())
"""


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory):
    """Return an interpreter that looks into the user's own site-packages.

    The tests' interpreter need not do so.
    """
    venv = tmp_path_factory.mktemp("interpreter") / "venv"
    make = [sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", venv]
    subprocess.run(make, check=True)
    ours = [path for path in sys.path if path.endswith("-packages")]
    lines = [f"import site; site.addsitedir({path!r})\n" for path in ours]
    next(venv.glob("lib/*/site-packages")).joinpath("tests.pth").write_text("".join(lines))
    return venv / "bin" / "python"


@both
def test_what_python_runs_before_a_script(here, tmp_path, interpreter, start):
    """Each adds a path, a hook into imports and a variable, takes a variable away, and speaks."""
    env = {"PYTHONUSERBASE": str(tmp_path / "user"), "PYTHONPATH": str(tmp_path / "library")}
    for name, place_of in STARTS.items():
        site = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        file = tmp_path / place_of.format(site=site)
        file.parent.mkdir(parents=True, exist_ok=True)
        path = tmp_path / f"of {name}"
        modules(path, [f"module_of_{name}"])
        file.write_text(BEFORE.format(name=name, path=str(path)))
        env[f"UNSET_BY_{name}"] = "1"
    file.with_suffix(".pth").write_text("import of_pth\n")
    env["CONFORMANCE_IMPORT"] = ",".join(f"module_of_{name}" for name in STARTS)
    script = place(here, "train.py", start=start)
    script.write_text(script.read_text() + "\nimport torch, builtins; print(builtins.HOOKED)\n")
    launchers = ["/proc/self/environ differs"]  # which has run them before, as torchrun would
    _, hpclaunch = compare(here, tmp_path, [script], start, launchers, env=env, program=interpreter)
    order = ["pth", "sitecustomize", "usercustomize"]
    lines = [f"{name} runs, and torch is False\n" for name in order]
    assert hpclaunch.out == "".join(lines) + f"{(*reversed(order),)}\n"
    for name in STARTS:
        assert hpclaunch.facts[0][f"environ.SET_BY_{name}"].endswith(f"/of {name}")


# Children and torch


@pytest.mark.parametrize(
    ("words", "start"), cold_and_warm(["children.py a", "-m children a"], ["children.py a"])
)
def test_children(here, tmp_path, words, start):
    words = words.split()
    place(here, "children.py", "children.py", start)
    launchers = Launchers(here, tmp_path / "left", start=start, env=SOCKETS)
    python, hpclaunch = launchers.python(*words), launchers.hpclaunch(*words)
    for run in (python, hpclaunch):
        assert run.facts, run.err
    for fact in hpclaunch.facts[0].values():  # the hook is in every Python below a worker
        if isinstance(fact, dict):
            assert fact.pop("modules") == [*OURS, *OF_DEBIAN]
    for fact in python.facts[0].values():
        if isinstance(fact, dict):
            assert fact.pop("modules") == OF_DEBIAN
    assert_same(python, hpclaunch)


@pytest.mark.torch
def test_training(trained):
    """Seeds, a loader, torch's own processes and threads, with two ranks."""
    python, cold, warm = trained.values()
    for each in (python, cold, warm):
        assert len(each.facts) == 2, each.err
        first, second = each.facts
        assert not set(first["own.unseeded"]) & set(second["own.unseeded"])
        assert first["own.initial_seed"] != second["own.initial_seed"]
        assert first["own.seeded"] == second["own.seeded"] == python.facts[0]["own.seeded"]
    assert_same(python, cold, ALLOWED)
    assert_same(python, warm, ALLOWED | WARM | {"torch was there"})


# Ends

ENDINGS = """finish exit_zero exit_three exit_none exit_text exit_large exception in_a_thread
a_thread_outlives_main exit_in_a_thread at_exit in_del own_hook too_deep leave_at_once abort
segfault segfault_with_traceback interrupt terminated interrupted broken_pipe warn unfinished_line
other_program closed_output"""
RECORDED = {  # ending: what @record would write of it
    "exception": "RuntimeError: epoch 3",
    "at_exit": "KeyError: 'before'",
    "own_hook": "RuntimeError: epoch 3",
    "too_deep": "RecursionError: maximum recursion depth exceeded",
    "broken_pipe": "BrokenPipeError: [Errno 32] Broken pipe",
}
NUMBER = re.compile(r"\d+")


def as_a_shell_has_it(code):
    return code if code >= 0 else 128 - code


def error_of(launchers, pattern="hpclaunch/round-0/rank-0.error.json"):
    """Return the content of the error file, or None without one."""
    files = list(launchers.outside.glob(pattern))
    return json.loads(files[0].read_text())["message"] if files else None


def compare_ends(cwd, tmp_path, *words, start="cold"):
    env = {"PYTHONPATH": str(FILES / "without_dill")}
    launchers = Launchers(cwd, tmp_path / "left", start=start, env=env)
    python, hpclaunch = launchers.python(*words), launchers.hpclaunch(*words)
    assert hpclaunch.code == as_a_shell_has_it(python.code)
    assert_same(python, hpclaunch)
    console = [text(launchers.outside / f"hpclaunch.{name}") for name in ("out", "err")]
    assert console[0] == python.out
    if not python.code:
        assert without_load(console[1]) == python.err
    return launchers, python


@pytest.mark.parametrize(("ending", "start"), cold_and_warm(ENDINGS.split(), WITH_TORCH))
def test_endings(here, tmp_path, ending, start):
    place(here, "train.py", "endings.py", start)
    launchers, _ = compare_ends(here, tmp_path, "train.py", ending, start=start)
    error = error_of(launchers)
    assert (error is not None) == (ending in RECORDED)
    if error is not None:
        assert error["message"].startswith(RECORDED[ending])


@pytest.mark.parametrize(("ending", "start"), cold_and_warm(["what_is_left"], WITH_TORCH))
def test_what_is_finalized(here, tmp_path, ending, start):
    place(here, "train.py", "endings.py", start)
    _, python = compare_ends(here, tmp_path, "train.py", ending, start=start)
    assert python.out.count("collected") == 2
    assert (here / "left").read_text() == "not flushed"


# The last ending as the worker's own, where torchrun has it recorded; the others in forks of it.
RECORDS = """import os, sys
import endings
from torch.distributed.elastic.multiprocessing.errors import record
*others, last = sys.argv[1:]
for ending in others:
    if not os.fork():
        os.environ["TORCHELASTIC_ERROR_FILE"] = f"{ending}.json"
        last = ending
        break
    os.wait()
record(getattr(endings, last))()
"""
NOT_RECORDED = """import sys
import endings
import torch.distributed
getattr(endings, sys.argv[1])()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, torchruns):
    """Return a directory with scripts that end, and what @record has written there of each end."""
    directory = tmp_path_factory.mktemp("recorded")
    place(directory, "endings.py", "endings.py")
    (directory / "recorded.py").write_text(RECORDS)
    (directory / "train.py").write_text(NOT_RECORDED)
    launchers = Launchers(directory, directory / "left")
    *others, last = RECORDED
    launchers.torchrun(torchruns, "recorded.py", *others, last)
    written = {name: json.loads((directory / f"{name}.json").read_text()) for name in others}
    errors = {name: error["message"] for name, error in written.items()}
    errors[last] = error_of(launchers, "torchrun/*/attempt_0/0/error.json")
    return directory, errors


@pytest.mark.torch
@pytest.mark.parametrize("ending", RECORDED)
def test_an_exception_is_recorded_as_by_torchrun_and_record(tmp_path, recorded, ending):
    """The same but for the frames around the script's own. One of ours has the real torch."""
    directory, errors = recorded
    theirs = errors[ending]
    env = {} if ending == "exception" else {"PYTHONPATH": LIGHT_TORCH}
    launchers = Launchers(directory, tmp_path / "left", env=env)
    launchers.hpclaunch("train.py", ending)
    ours = error_of(launchers)
    assert ours.keys() == theirs.keys()
    assert ours["message"] == theirs["message"]
    assert ours["extraInfo"].keys() == theirs["extraInfo"].keys()
    traces = [error["extraInfo"]["py_callstack"] for error in (ours, theirs)]
    assert ["in wrapper" in trace for trace in traces] == [False, True]
    ours, theirs = (NUMBER.sub("N", trace.rpartition(f"in {ending}\n")[2]) for trace in traces)
    assert ours == theirs


@pytest.mark.torch
def test_what_record_wrote_is_left_alone(here, tmp_path):
    place(here, "endings.py", "endings.py")
    (here / "train.py").write_text(RECORDS)
    launchers, _ = compare_ends(here, tmp_path, "train.py", "exception")
    assert "in wrapper" in error_of(launchers)["extraInfo"]["py_callstack"]


def test_a_failing_module(here, tmp_path):
    place(here, "train.py", "endings.py")
    launchers, _ = compare_ends(here, tmp_path, "-m", "train", "exception")
    assert error_of(launchers)["message"] == RECORDED["exception"]


def test_a_script_that_is_not_python(here, tmp_path):
    (here / "train.py").write_text("import os\n\ndef train(:\n    pass\n")
    launchers, python = compare_ends(here, tmp_path, "train.py")
    assert "SyntaxError" in python.err
    assert error_of(launchers)["message"].startswith("SyntaxError: ")


def test_a_module_that_is_not_there(here, tmp_path):
    _, python = compare_ends(here, tmp_path, "-m", "pack.train")
    assert "ModuleNotFoundError" in python.err


@pytest.mark.torch
def test_torchrun_shows_the_same_traceback(here, tmp_path, torchruns):
    place(here, "train.py", "endings.py")
    launchers, python = compare_ends(here, tmp_path, "train.py", "exception")
    torchrun = launchers.torchrun(torchruns, "train.py", "exception")
    assert (torchrun.out, torchrun.err) == (python.out, python.err)
    assert torchrun.code == 1


# The standard streams of the launcher

READS = """import os, sys
told = [os.isatty(fd) for fd in range(3)]
print(told, repr(sys.stdin.readline()), file=open("told", "w"))
"""


def with_streams(launcher, cwd, tmp_path, **streams):
    (cwd / "train.py").write_text(READS)
    start = {
        "python": [sys.executable, "-u"],
        "hpclaunch": [HPCLAUNCH, "--nproc=1", "--log-dir", tmp_path / "logs"],
    }
    command = [*start[launcher], "train.py"]
    env = {**by_hand(0, 1), **environment()}
    subprocess.run(command, cwd=cwd, env=env, check=True, timeout=LIMIT, **streams)
    return (cwd / "told").read_text()


@pytest.mark.parametrize("launcher", ["python", "hpclaunch"])
def test_standard_input_is_the_launchers(here, tmp_path, launcher):
    streams = with_streams(launcher, here, tmp_path, input=b"a b\nc", capture_output=True)
    assert streams == "[False, False, False] 'a b\\n'\n"


@pytest.mark.parametrize("launcher", ["python", "hpclaunch"])
def test_a_terminal(here, tmp_path, launcher):
    ours, theirs = pty.openpty()
    os.write(ours, b"a b\n")
    streams = with_streams(launcher, here, tmp_path, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(ours)
    os.close(theirs)
    assert streams == "[True, True, True] 'a b\\n'\n"
