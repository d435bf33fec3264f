"""The surroundings of tests do not depend on those of the process that started them."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import surroundings

pytestmark = pytest.mark.starts

HERE = Path(__file__).parent
REPORT = """
import json, os, resource, sys
with open("/proc/self/status") as f:
    status = dict(line.split(":\\t", 1) for line in f.read().splitlines() if ":\\t" in line)
limits = [resource.getrlimit(n)[0] for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)]
report = {name: int(status[name], 16) for name in ("SigIgn", "SigBlk")}
report |= {"Umask": status["Umask"], "limits": limits, "encoding": sys.getfilesystemencoding()}
print(json.dumps(report | {"environ": dict(os.environ)}))
"""
PYTHONS = sum(1 << signum - 1 for signum in surroundings.PYTHONS)
# Without the signals that the C library reserves: their state cannot be changed.
VALID = sum(1 << signum - 1 for signum in signal.valid_signals())
KNOWN = {"SigIgn": PYTHONS, "SigBlk": 0, "Umask": "0022", "limits": [1024, 0], "encoding": "utf-8"}
FOREIGN_VARIABLES = {
    "LC_ALL": "C",
    "LANGUAGE": "de",
    "TZ": "Asia/Tokyo",
    "PYTHONPATH": "/nowhere",
    "PYTHONDEVMODE": "1",
    "SLURM_JOB_ID": "7",
    "PET_NNODES": "2",
    "RANK": "3",
    "OMP_NUM_THREADS": "5",
    "CUDA_VISIBLE_DEVICES": "1",
    "NCCL_DEBUG": "INFO",
    "HPCLAUNCH_SECRET_FILE": "/nowhere",
    "XDG_STATE_HOME": "/nowhere",
}


def report_of(program: str = REPORT, **more: object) -> dict:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE, check=True, **more)
    found = json.loads(done.stdout)
    return found | {name: found[name] & VALID for name in ("SigIgn", "SigBlk") if name in found}


@pytest.fixture
def without_others():
    if surroundings.entered:
        pytest.skip("unusual surroundings were requested")


def test_programs_that_a_test_starts(without_others: None) -> None:
    found = report_of()
    ours = [name for name in found.pop("environ") if not name.startswith("PYTEST_")]
    assert found == KNOWN
    # pytest imports readline, which exports the size of the terminal.
    assert {*ours} <= {*surroundings.KEPT, *surroundings.CONTROLS, "LANG", "LINES", "COLUMNS"}


def set_strange() -> None:
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGRTMIN])
    os.umask(0)
    for limit, most in ((resource.RLIMIT_NOFILE, 300), (resource.RLIMIT_CORE, 1 << 20)):
        hard = resource.getrlimit(limit)[1]
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (soft, hard))


MAKE_KNOWN = "import surroundings; surroundings.make_known()\n"
STARTS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {REPORT!r}], check=True)"


def test_strange_surroundings_are_replaced(without_others: None) -> None:
    environ = {**os.environ, **FOREIGN_VARIABLES}
    found = report_of(MAKE_KNOWN + STARTS, env=environ, preexec_fn=set_strange)
    assert not FOREIGN_VARIABLES.keys() & found.pop("environ").keys()
    assert found == KNOWN


def test_bytecode_is_kept() -> None:
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    program = "import json, sys; print(json.dumps({'kept': not sys.dont_write_bytecode}))"
    assert report_of(program, env=environ) == {"kept": False}
    assert report_of(MAKE_KNOWN + program, env=environ) == {"kept": True}


def test_after_nohup_the_tests_survive_their_terminal(without_others: None) -> None:
    program = "import os; os.kill(os.getpid(), 1); print('{}')"
    assert report_of(MAKE_KNOWN + program, preexec_fn=set_strange) == {}


def test_a_python_without_utf_8_says_what_it_needs() -> None:
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", MAKE_KNOWN]
    done = subprocess.run(command, env=environ, cwd=HERE, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith("needs UTF-8: LC_ALL=C.UTF-8 make test")
