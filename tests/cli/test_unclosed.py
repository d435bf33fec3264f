"""However a launch ends: the agent and its helpers close what they have opened."""

import signal
import subprocess
import sys

import pytest
from launching import LIMIT, end, script, until

from surroundings import LIGHT_TORCH, environment, free_port

pytestmark = pytest.mark.starts

# The command, and its helpers, which are isolated from the environment, with these warnings.
PROGRAM = """import sys
from hpclaunch.system.shared import helper
helper._PYTHON += ("-W", "error::ResourceWarning")
from hpclaunch.cli import main
sys.exit(main())
"""
SLEEPS = "import time; open('begun', 'w'); time.sleep(600)\n"


def begin(directory, *options):
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", PROGRAM, *map(str, options)]
    return subprocess.Popen(
        command,
        cwd=directory,
        env=environment(PYTHONPATH=LIGHT_TORCH, HPCLAUNCH_SECRET_FILE=directory / "secret"),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


ENDS = {
    "well": ([], "pass", 0),
    "well, with a template": ([], "import torch", 0),
    "with a failure": (["--max-restarts=0"], "raise SystemExit(3)", 3),
    "after a restart": (["--max-restarts=1"], "raise SystemExit(3)", 3),
    "with checkpoints": (["--checkpoint-dir=saved"], "pass", 0),
    "with metrics": (["--metrics=node.prom", "--notify=true"], "pass", 0),
    "a mistake in an option": (["--nproc=0"], "pass", 2),
    "a mistake in a path": (["not-there.py"], "pass", 2),
}


@pytest.mark.parametrize("name", ENDS)
def test_an_end(tmp_path, name):
    options, source, code = ENDS[name]
    launcher = begin(tmp_path, "--nproc=2", *options, script(tmp_path, source))
    _, err = launcher.communicate(timeout=LIMIT)
    assert launcher.returncode == code, err
    assert "ResourceWarning" not in err


def test_a_signal(tmp_path):
    launcher = begin(tmp_path, script(tmp_path, SLEEPS))
    until((tmp_path / "begun").exists)
    code, _, err = end(launcher)
    assert code == 128 + signal.SIGTERM, err
    assert "ResourceWarning" not in err


@pytest.mark.parametrize("kill", [False, True], ids=["well", "one launcher is killed"])
def test_two_launchers(tmp_path, kill):
    at = ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--max-restarts=0"]
    at.append(f"--loss-timeout={LIMIT}")
    path = script(tmp_path, SLEEPS if kill else "pass")
    launchers = [begin(tmp_path, *at, f"--node-rank={node}", path) for node in range(2)]
    if kill:
        until((tmp_path / "begun").exists)
        launchers[1].kill()
    errors = [launcher.communicate(timeout=LIMIT)[1] for launcher in launchers]
    assert (launchers[0].returncode == 0) is not kill, errors
    assert "ResourceWarning" not in "".join(errors)
