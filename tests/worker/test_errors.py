"""The file with a worker's exception: real interpreters, started as workers are."""

import ctypes
import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest
from test_hooks import HOOKS, LIMIT, environment

from surroundings import SHORT

pytestmark = pytest.mark.starts

PR_SET_PDEATHSIG = 1
FAILS = "raise ValueError('of the worker')\n"
OF_THE_WORKER = "ValueError: of the worker"


def as_a_worker():
    """Do what the fork server does before it starts the program."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


class Worker:
    def __init__(self, cwd):
        self.cwd = cwd
        self.file = cwd / "rank-0.error.json"

    def run(self, *command, hooks=True, **changes):
        names = {"HPCLAUNCH_STORE": "10.0.0.1:4000", "TORCHELASTIC_ERROR_FILE": self.file}
        env = environment(*[HOOKS][: int(hooks)], **(names | changes))
        return subprocess.run(
            command,
            cwd=self.cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            preexec_fn=as_a_worker,
        )

    def python(self, text, *options, **how):
        (self.cwd / "train.py").write_text(text)
        return self.run(sys.executable, *(options or ["train.py"]), **how)

    def shell(self, command):
        """Run a worker that stays a shell and does not become its last program."""
        return self.run("sh", "-c", command + "\n:", sys.executable)

    def recorded(self):
        return json.loads(self.file.read_text())["message"] if self.file.exists() else None

    def message(self):
        recorded = self.recorded()
        return recorded and recorded["message"]


@pytest.fixture
def worker(tmp_path):
    return Worker(tmp_path)


def test_what_torch_reads(worker):
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    before = int(time.time())
    text = "def train():\n    raise KeyError('größe')\n\ntrain()\n"
    ended = worker.python(text, PYTHONIOENCODING="utf-8")
    assert ended.returncode == 1
    failure = ProcessFailure(0, 71, 1, str(worker.file))
    assert failure.message["message"] == "KeyError: 'größe'"
    assert failure.message["extraInfo"]["py_callstack"] == ended.stderr
    assert "in train" in ended.stderr
    assert before <= failure.timestamp <= time.time()


def test_it_is_what_record_writes(worker):
    imports = "from torch.distributed.elastic.multiprocessing.errors import record\n"
    text = """
def main():
    try:
        raise ValueError("wrong\\nin two lines")
    except ValueError as e:
        raise RuntimeError("epoch 3") from e

{}main()
"""
    worker.python(text.format(""))
    ours = worker.file.read_text()
    decorated = imports + text.format("main = record(main)\n")
    worker.python(decorated, hooks=False)
    theirs = worker.file.read_text()
    worker.python(decorated)
    assert "in wrapper" in worker.recorded()["extraInfo"]["py_callstack"], "torch's was replaced"

    ours, theirs = (json.loads(text)["message"] for text in (ours, theirs))
    assert ours.keys() == theirs.keys()
    assert ours["message"] == theirs["message"] == "RuntimeError: epoch 3"
    assert ours["extraInfo"].keys() == theirs["extraInfo"].keys()
    first, last = "in main", 'RuntimeError("epoch 3")'
    for part in (ours, theirs):
        trace = part["extraInfo"]["py_callstack"]
        part["ends"] = (trace.partition(first)[2].partition("\n\n")[0], trace.partition(last)[2])
    assert ours["ends"] == theirs["ends"]


def test_only_the_user_can_read_it(worker):
    worker.python("import os; os.umask(0)\n" + FAILS)
    assert stat.S_IMODE(worker.file.stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe"])
def test_what_somebody_has_put_in_its_place_stays_as_it_is(worker, kind):
    victim = worker.cwd / "authorized_keys"
    victim.touch()
    match kind:
        case "link":
            worker.file.symlink_to(victim)
        case "hard link":
            worker.file.hardlink_to(victim)
        case "pipe":
            os.mkfifo(worker.file)
    ended = worker.python(FAILS)
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback") == 1
    assert victim.read_bytes() == b""


@pytest.mark.parametrize(
    ("options", "text", "message"),
    [
        (["-m", "train"], FAILS, OF_THE_WORKER),
        (["-c", FAILS], "", OF_THE_WORKER),
        (["."], "", "ValueError: of the package"),
        (["train.py"], "def train(:\n", "SyntaxError: invalid syntax (train.py, line 1)"),
        (["train.py"], "import not_there", "ModuleNotFoundError: No module named 'not_there'"),
        (["train.py"], "import sys; sys.excepthook = print\n" + FAILS, OF_THE_WORKER),
        (["train.py"], "import os; os.close(1); os.close(2)\n" + FAILS, OF_THE_WORKER),
        (["train.py"], "assert False", "AssertionError: "),
        (["train.py"], "raise ValueError('\\udcff')", "ValueError: \udcff"),
        (["train.py"], "import atexit; atexit.register(lambda: 1 / 0)\n" + FAILS, OF_THE_WORKER),
        (["train.py"], "raise ExceptionGroup('all', [OSError()])", "ExceptionGroup: all (1 sub-e"),
    ],
)
def test_exceptions(worker, options, text, message):
    if text.startswith("raise ExceptionGroup") and sys.version_info < (3, 11):
        pytest.skip("this Python has no groups")
    (worker.cwd / "__main__.py").write_text("raise ValueError('of the package')")
    assert worker.python(text, *options).returncode != 0
    assert worker.message().startswith(message)


OTHER_ENDS = {
    "finished": "",
    "exit code": "import sys; sys.exit(3)",
    "exit text": "import sys; sys.exit('no such data set')",
    "interrupted": "raise KeyboardInterrupt",
    "handled": f"try:\n    {FAILS}except ValueError: pass",
    "thread": "import threading; threading.Thread(target=lambda: 1 / 0).start()",
    "at exit": "import atexit; atexit.register(lambda: 1 / 0)",
    "shown by a shell in the script": (
        "import code, sys; code.InteractiveInterpreter().runcode('1 / 0')\n"
        "assert isinstance(sys.last_value, ZeroDivisionError)\nsys.exit(3)"
    ),
    "left at once": "import os\ntry:\n    1 / 0\nfinally:\n    os._exit(4)",
    "killed": "import os; os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("text", OTHER_ENDS.values(), ids=OTHER_ENDS)
def test_other_ends(worker, text):
    worker.python(text)
    assert not worker.file.exists()


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (FAILS, {"TORCHELASTIC_ERROR_FILE": "not/there/error.json"}),
        (FAILS, {"TORCHELASTIC_ERROR_FILE": "."}),
        (FAILS, {"TORCHELASTIC_ERROR_FILE": ""}),
        ("class E(Exception):\n    def __str__(self): 1 / 0\nraise E\n", {}),
        ("import sys; sys.modules['json'] = None\n" + FAILS, {}),
        ("import sys; sys.setrecursionlimit(60)\ndef f(): f()\nf()", {}),
    ],
)
def test_nothing_of_it_is_seen(worker, text, changes):
    """Output and exit code stay the same, whatever fails in the hooks."""
    hooked, plain = (worker.python(text, hooks=hooks, **changes) for hooks in (True, False))
    assert (hooked.stdout, hooked.stderr) == (plain.stdout, plain.stderr)
    assert hooked.returncode == plain.returncode == 1


CHILDREN = {
    "a fork": """
pid = os.fork()
if not pid:
    raise KeyError("of a child")
os.waitpid(pid, 0)
""",
    "a program": "subprocess.run([sys.executable, 'child.py'])",
    "a program in a session of its own": """
subprocess.run([sys.executable, "child.py"], start_new_session=True)
""",
    "a shell's": "subprocess.run([sys.executable + ' child.py; :'], shell=True)",
    **{
        method: f"""
child = multiprocessing.get_context("{method}").Process(target=fail)
child.start()
child.join()
assert child.exitcode == 1
"""
        for method in ("fork", "spawn", "forkserver")
    },
    "torch": """
torch.multiprocessing.spawn(fail, nprocs=1)
""",
}
PARENT = """
import multiprocessing, os, subprocess, sys

def fail(*_):
    raise KeyError("of a child")

if __name__ == "__main__":
"""


@pytest.mark.parametrize("start", CHILDREN.values(), ids=CHILDREN)
def test_a_childs_failure_is_for_the_worker_to_handle(worker, start):
    (worker.cwd / "child.py").write_text("raise KeyError('of a child')")
    torch = "import torch.multiprocessing\n" if "torch" in start else ""
    handled = f"try:\n    {start.strip()}\nexcept Exception: pass\n" if torch else start
    text = torch + PARENT + "".join(f"    {line}\n" for line in handled.splitlines())

    sockets = {"TMPDIR": SHORT}  # multiprocessing has some there
    ended = worker.python(text, **sockets)
    assert ended.returncode == 0, ended.stderr
    assert worker.message() is None
    if not torch:
        assert "of a child" in ended.stderr

    assert worker.python(text + "    " + FAILS, **sockets).returncode == 1
    assert worker.message() == OF_THE_WORKER


def test_a_worker_that_fails_by_its_child(worker):
    text = PARENT.replace("import", "import torch.multiprocessing,", 1)
    assert worker.python(text + "    torch.multiprocessing.spawn(fail)").returncode == 1
    assert worker.message().startswith("ProcessRaisedException: ")
    assert "KeyError: 'of a child'" in worker.message()


@pytest.mark.parametrize(
    ("end", "message"), [(FAILS, OF_THE_WORKER), ("os._exit(3)", None), ("sys.exit(3)", None)]
)
@pytest.mark.parametrize("shell", ["", "; :"])
def test_a_child_that_fails_because_the_worker_is_gone(worker, end, message, shell):
    """The child holds our end of the output, so all is written when the run is over."""
    (worker.cwd / "child.py").write_text("input()")
    text = f"""
import os, subprocess, sys

child = f"'{{sys.executable}}' child.py{shell}"
held = subprocess.Popen(child, shell=True, stdin=subprocess.PIPE, text=True)
{end}
"""
    ended = worker.python(text)
    assert "EOFError" in ended.stderr
    assert worker.message() == message


def test_below_a_shell_the_last_failure_counts(worker):
    for name in ("first", "second"):
        (worker.cwd / f"{name}.py").write_text(f"raise ValueError('of the {name}')")
    worker.shell('"$0" first.py')
    assert worker.message() == "ValueError: of the first"
    worker.shell('"$0" first.py || sh -c \'"$0" second.py; :\' "$0"; "$0" -c ""')
    assert worker.message() == "ValueError: of the second"
    torchs = '{"message": {"message": "of torch"}}'
    worker.file.write_text(torchs)
    worker.shell('"$0" first.py')
    assert worker.file.read_text() == torchs


def test_the_workers_of_a_launcher_in_a_worker_are_its_own(worker):
    """torchrun sees of them what it always sees, and fails itself."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "train.py"]
    (worker.cwd / "train.py").write_text(FAILS)
    ended = worker.run(*torchrun)
    assert ended.returncode == 1
    assert "To enable traceback see" in ended.stderr
    assert worker.message().startswith("ChildFailedError: ")


def test_a_fork_that_is_a_worker(worker):
    """The template forks workers, and is no worker itself."""
    text = """
import atexit, ctypes, os, sys

assert atexit._ncallbacks() == 1
pid = os.fork()
if not pid:
    os.setsid()
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
    sys.modules["_hpclaunch_hooks"].record_errors()
    assert atexit._ncallbacks() == 1
    raise KeyError("of the fork")
os.waitpid(pid, 0)
"""
    ended = worker.python(text)
    assert ended.returncode == 0, ended.stderr
    assert worker.message() == "KeyError: 'of the fork'"
