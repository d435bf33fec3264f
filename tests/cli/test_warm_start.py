"""Warm or cold: where the workers come from, and what is said of it.

What is marked `torch` has the real one; elsewhere a package of the same name and shape will do.
"""

import json
import os
import shutil
import sys
import textwrap

import pytest
from launching import hpclaunch

from surroundings import LIGHT_TORCH, PRELOADED, entered, environment

pytestmark = pytest.mark.starts

REPORT = PRELOADED + "print(preloaded('torch'))\n"
TRAINS = REPORT + "import torch\n"
WARM = "import gc; print(gc.get_freeze_count() > 0)\nimport torch\n"


@pytest.fixture
def run(tmp_path, request):
    """Launch a script; what it said, what hpclaunch said, and the journal."""

    def run(source, *options, env=None, args=()):
        (tmp_path / "train.py").write_text(source)
        env = env or {}
        if not request.node.get_closest_marker("torch"):
            path = filter(None, [env.get("PYTHONPATH"), LIGHT_TORCH])
            env = env | {"PYTHONPATH": ":".join(map(str, path))}
        logs = tmp_path / "logs"
        words = ("--nproc=2", "--log-dir", logs, *options, "train.py", *args)
        done = hpclaunch(*words, cwd=tmp_path, env=environment(**env))
        assert done.returncode == 0, done.stderr
        lines = (logs / "journal.jsonl").read_text().splitlines()
        return sorted(done.stdout.splitlines()), done.stderr, [json.loads(x) for x in lines]

    return run


def of_template(journal):
    return [entry["with"]["state"] for entry in journal if entry.get("note") == "template"]


THREADS = "import os; print(torch.get_num_threads(), os.environ['OMP_NUM_THREADS'])\n"


@pytest.mark.torch
def test_a_script_with_torch_finds_it_imported(run):
    said, messages, journal = run(TRAINS + THREADS)
    assert said == ["1 1", "1 1", "True", "True"]
    assert messages == ""
    assert of_template(journal) == ["ready"]


def test_a_script_without_torch_pays_nothing_for_it(run):
    said, messages, journal = run(REPORT)
    assert said == ["False", "False"]
    assert messages == ""
    assert of_template(journal) == []


def test_cold_on_request(run):
    said, messages, _ = run(TRAINS, "--cold")
    assert said == ["False", "False"]
    assert messages == ""


COLD = {
    "import os\nos.environ['OMP_NUM_THREADS'] = '3'\n": "sets OMP_NUM_THREADS in line 2",
    "import os\nos.environ.setdefault('TORCH_LOGS', 'dynamo')\n": "sets TORCH_LOGS in line 2",
    "import os\nos.environ['LD_LIBRARY_PATH'] = '/x'\n": "sets LD_LIBRARY_PATH in line 2",
}


@pytest.mark.parametrize("source", COLD)
def test_variables_that_come_before_torch(run, source):
    said, messages, _ = run(source + TRAINS)
    assert said == ["False", "False"]
    assert "hpclaunch: cold start: train.py " + COLD[source] in messages
    assert messages.count("\n") == 1


def test_a_variable_that_a_function_sets_before_torch(run):
    """The worker becomes a new interpreter. It is said once, and the next rounds start cold."""
    source = (
        "import os\ndef prepare():\n    os.environ['OMP_NUM_THREADS'] = '3'\n"
        f"{REPORT}prepare()\nimport torch\n"
        "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n"
    )
    said, messages, _ = run(source, "--nproc=1")
    assert said == ["False", "False", "True"]
    line = "hpclaunch: cold start: train.py sets OMP_NUM_THREADS in line 3, before it imports torch"
    assert messages.count(line) == messages.count("cold start") == 1


def test_a_variable_that_torch_never_reads_at_load(run):
    said, messages, _ = run("import os\nos.environ['MASTER_ADDR'] = 'localhost'\n" + TRAINS)
    assert (said, messages) == (["True", "True"], "")


@pytest.mark.torch
def test_threads_of_the_user_are_those_of_openmp(run):
    """libgomp reads OMP_NUM_THREADS when torch is loaded: the template has what workers have."""
    assert run(TRAINS + THREADS, env={"OMP_NUM_THREADS": "2"})[0] == ["2 2", "2 2", "True", "True"]


def test_another_interpreter(run, tmp_path):
    wrapper = tmp_path / "python-with-tools"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    said, messages, _ = run(TRAINS, env={"PYTHON_EXEC": str(wrapper)})
    assert said == ["False", "False"]
    assert f"cold start: {wrapper} is another interpreter" in messages


SITES = {  # sitecustomize: why workers cannot have it from one process
    "import os; os.environ.get('LOCAL_RANK')": "sitecustomize.py reads LOCAL_RANK, of which each",
    "import os; os.getenv('MASTER_PORT')": "sitecustomize.py reads MASTER_PORT, of which each",
    "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()": "threads",
    "import atexit, subprocess; p = subprocess.Popen(['sleep', '60'])\n"
    "atexit.register(p.kill)": "starts processes",
    "log = open('log', 'w')": "/log",
    "import os; ends = os.pipe()": "opens pipe:",
    "import sys; sys.setprofile(lambda *_: None)": "the interpreter is being traced",
}


@pytest.mark.parametrize("source", SITES)
def test_a_site_that_is_each_workers_own(run, tmp_path, source):
    library = tmp_path / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text(source)
    said, messages, _ = run(TRAINS, env={"PYTHONPATH": library})
    assert said == ["False", "False"]
    assert "hpclaunch: cold start: " in messages
    assert SITES[source] in messages


FINE = [
    "import sys; sys.path.insert(0, sys.path.pop())",
    "import os; os.environ['OMP_NUM_THREADS'] = '3'",
    "import subprocess, sys\nif sys.argv[0] != '-c':\n"
    "    subprocess.run([sys.executable, '-c', ''], check=True)",
    "import os, sys\nif 'AGAIN' not in os.environ:\n    os.environ['AGAIN'] = '1'\n"
    "    os.execv(sys.executable, sys.orig_argv)",
    "import torch",
    "import os; mine = {k: v for k, v in os.environ.items() if k.startswith('MINE_')}",
    "import os; everything = os.environ.copy()",
]


@pytest.mark.parametrize("source", FINE)
def test_a_site_that_all_workers_may_share(run, tmp_path, source):
    library = tmp_path / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text(source)
    shown = "import os; print([os.environ.get(name) for name in ('OMP_NUM_THREADS', 'AGAIN')])\n"
    warm, messages, _ = run(WARM + shown, env={"PYTHONPATH": library})
    assert messages == ""
    assert warm[:2] == ["True", "True"]
    cold, _, _ = run(WARM + shown, "--cold", env={"PYTHONPATH": library})
    assert warm[2:] == cold[2:]


@pytest.mark.torch
def test_modules_beside_the_script_come_first(run, tmp_path):
    (tmp_path / "numpy.py").write_text("WHOSE = 'mine'\n")
    source = "import numpy; print(numpy.WHOSE)\ndef later():\n    import torch\n"
    said, messages, _ = run(source)
    assert said == ["mine", "mine"]
    assert "cold start:" in messages
    assert "numpy.py stands in for the numpy that torch imports" in messages


def test_preload(run):
    source = PRELOADED + "print([preloaded(m) for m in ('torch', 'wave', 'chunk')])\n"
    said, messages, _ = run(source + TRAINS, "--preload", "wave,nowhere")
    assert said == ["True", "True", "[True, True, False]", "[True, True, False]"]
    reason = "skipped, ModuleNotFoundError: No module named 'nowhere'"
    assert messages == f"hpclaunch: --preload nowhere: {reason}\n"


LEARNS = f"""
{PRELOADED}
import os, torch, torch.distributed as dist
known = [preloaded('torch._dynamo'), preloaded('wave')]
print(os.environ['TORCHELASTIC_RESTART_COUNT'], *known)
dist.init_process_group('gloo')
import wave
{{}}
if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':
    dist.barrier()
    sys.exit(1)
"""
STEPS = """
optimizer = torch.optim.AdamW(torch.nn.Linear(1, 1).parameters())
for _ in range(3):
    optimizer.step()
"""


# There is a template with what the text shows, and then one with what the workers have imported.
UNTIL_LEARNED = """
import time
while open('logs/journal.jsonl').read().count('"note":"renewed"') < 2:
    time.sleep(0.05)
"""


def renewed(journal):
    return [entry for entry in journal if entry.get("note") == "renewed"]


@pytest.mark.torch
def test_what_a_script_imports_is_there_when_it_starts_again(run):
    """Imports that the script's text shows are there at once, the rest at the restart."""
    said, _, journal = run(LEARNS.format(STEPS + UNTIL_LEARNED))
    assert said == ["0 True False"] * 2 + ["1 True True"] * 2
    assert len(renewed(journal)) == 2


def test_nothing_is_imported_in_advance_if_the_user_does_not_want_it(run):
    steps = "def trains():\n" + textwrap.indent(STEPS, "    ")  # each worker would import much
    said, _, journal = run(LEARNS.format(steps), "--preload", "none")
    assert said == ["0 False False"] * 2 + ["1 False False"] * 2
    assert not renewed(journal)


def test_arguments_of_a_round_are_those_of_its_workers(run, tmp_path):
    """Resuming adds some; the template was started without."""
    (tmp_path / "saved").mkdir()
    source = (
        "import os, sys, torch\n"
        "if os.environ['RANK'] == '0': print(sys.argv[1:], sys.orig_argv[-1] == sys.argv[-1])\n"
        "again = os.environ['TORCHELASTIC_RESTART_COUNT'] != '0'\n"
        "if not again and os.environ['RANK'] == '0':\n"
        "    torch.save({}, 'saved/one.pt'); sys.exit(1)\n"
    )
    options = ("--checkpoint-dir", "saved", "--resume-with", "--resume {checkpoint}")
    said, _, _ = run(source, *options, args=("a",))
    saved = os.fspath(tmp_path / "saved" / "one.pt")
    assert said == [f"['a', '--resume', '{saved}'] True", "['a'] True"]


def test_a_working_directory_that_is_renamed_during_the_run(tmp_path):
    """The template has the absolute path of the script, which is no longer its path."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(
        "import os, sys, torch\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    os.rename('../project', '../older'); sys.exit(1)\n"
        "print(os.path.basename(os.getcwd()))\n"
    )
    words = ("--nproc=1", "--log-dir", tmp_path / "logs", "train.py")
    env = environment(PYTHONPATH=os.fspath(LIGHT_TORCH))
    done = hpclaunch(*words, cwd=tmp_path / "project", env=env)
    assert (done.returncode, done.stdout) == (0, "older\n"), done.stderr


COMPILES = """
import torch
step = torch.compile(lambda x: (x.sin() ** 2 + x.cos() ** 2).sum())
print(round(step(torch.ones(1000)).item()))
"""


@pytest.mark.torch
@pytest.mark.compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++")
@pytest.mark.skipif("locale" in entered, reason="torch.compile reads files of torch in UTF-8")
@pytest.mark.skipif("tmpdir" in entered, reason="torch.compile does not quote TMPDIR for g++")
def test_torch_compile(run, tmp_path):
    """A forked worker has the processes and threads that torch.compile starts."""
    said, messages, _ = run(COMPILES, env={"TORCHINDUCTOR_CACHE_DIR": tmp_path / "cache"})
    assert said == ["1000", "1000"], messages
