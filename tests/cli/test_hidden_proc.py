"""Restricted /proc: only processes in some containers, or only one's own on some nodes."""

import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from launching import end, fork_server, hpclaunch, script, start, until
from test_doctor import interpreter

from living import living
from surroundings import LIGHT_TORCH, environment

pytestmark = pytest.mark.starts

SHOWS = {"processes": "subset=pid", "one's own processes": "hidepid=2"}
USER = 100_000 + os.getpid()  # nobody else's: its jobs are those of one test
AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
# To read what is installed in the home of root.
AS_USER += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]

TRAINS = """
import os, time, torch, torch.distributed as dist
from hpclaunch.progress import step
dist.init_process_group("gloo")
begun, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], dist.get_rank()
for number in range(20):
    dist.all_reduce(torch.tensor([1.0, 1.0]))
    step(number)
    if rank == 1 and (begun, number) == ("0", 3):
        os.kill(os.getpid(), 9)
    if rank == 1 and (begun, number) == ("1", 10):
        time.sleep(1000)
"""


@pytest.fixture
def cwd():
    """Yield a directory that other users can reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chown(directory, USER, USER)
        yield Path(directory)


@pytest.fixture(params=SHOWS.values(), ids=SHOWS)
def hidden(request):
    """Return the words before a command that runs there, as another user than root."""
    mount = f'mount -t proc -o {request.param} proc /proc && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    if os.geteuid() or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("/proc cannot be mounted here like this")
    return [*words, *AS_USER]


@pytest.fixture
def env(cwd):
    return environment(HOME=cwd, XDG_STATE_HOME=cwd / "state", PYTHONPATH=LIGHT_TORCH)


def users_script(cwd, text):
    path = script(cwd, text)
    os.chown(path, USER, USER)
    return path


def test_a_failure_and_a_hang_are_seen_and_mended(hidden, cwd, env):
    args = ("--nproc", 2, users_script(cwd, TRAINS))
    done = hpclaunch(*args, cwd=cwd, env=env, before=hidden, timing={"least_hang": 6.0})
    assert done.returncode == 0, done.stderr
    assert "rank 1 on " in done.stderr
    assert re.search(r"rank 1 on \S+ was killed by SIGKILL; restart 1 of 3", done.stderr)
    assert re.search(r"rank 1 on \S+ has not reached it: it is in train.py:\d+", done.stderr)
    assert re.search(r"rank 1 on \S+ hung; restart 2 of 3", done.stderr)


def test_a_job_can_be_looked_at_and_loses_its_fork_server(hidden, cwd, env, request):
    path = users_script(cwd, "import pathlib, time; pathlib.Path('up').touch(); time.sleep(1000)")
    args = ("--nproc", 2, "--log-dir", "logs", path)
    process = start(*args, cwd=cwd, environ=env, before=hidden)
    request.addfinalizer(process.kill)
    until((cwd / "up").exists)

    def until_shown(command, text):
        def is_shown():
            done = hpclaunch(command, cwd=cwd, env=env, before=hidden)
            return done.returncode == 0 and text in done.stdout

        until(is_shown, pause=0.5)

    until_shown("status", "1 node · 2 ranks")
    until_shown("stacks", "train.py:1")
    server, *below = fork_server(process)
    os.kill(server, signal.SIGKILL)
    until_shown("status", "round 1 · 1 of 3 restarts")
    assert not living([server, *below])
    code, _, said = end(process)
    assert code == 128 + signal.SIGTERM
    assert "Traceback" not in said


def test_the_doctor(hidden, cwd, env):
    python = interpreter(cwd / "python")
    done = hpclaunch("doctor", cwd=cwd, env=env | {"PYTHON_EXEC": str(python)}, before=hidden)
    assert done.returncode == 0, done.stdout
    assert "a check broke" not in done.stdout
