"""A user's mistake is one clear line and exit code 2, without a traceback."""

import os
import subprocess

import pytest
from launching import HPCLAUNCH, environment, hpclaunch, script

# For root the modes of files mean nothing unless these two capabilities are gone.
WITHOUT_ROOTS_RIGHTS = (
    ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
)


@pytest.fixture
def cwd(tmp_path):
    script(tmp_path, "print('ran')")
    (tmp_path / "file").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "the following arguments are required: script"),
        (["missing.py"], "no script missing.py in "),
        (["."], ". is a directory, not a script"),
        (["--nproc", "0", "train.py"], "--nproc 0: not a number of workers above 0"),
        (["--nproc", "-1", "train.py"], "--nproc -1: not a number of workers above 0"),
        (["--nproc", "two", "train.py"], "--nproc two: not a number of workers above 0"),
        (["--nproc", "gpu", "train.py"], "--nproc gpu, but no GPU is visible here"),
        (["--max-restarts", "-1", "train.py"], "--max-restarts -1: less than none"),
        (["--max-restarts", "x", "train.py"], "invalid int value: 'x'"),
        (["--grace", "nan", "train.py"], "--grace nan: not a number of seconds"),
        (["--no-such-option", "train.py"], "unrecognized arguments: --no-such-option"),
        (["--log-dir", "file/logs", "train.py"], "cannot write to the log directory file/logs"),
        (["--checkpoint-dir", "file", "train.py"], "--checkpoint-dir file is not a directory"),
        (
            ["--checkpoint-dir", "c", "--resume-with", "--resume", "train.py"],
            "expected one argument",
        ),
        (
            ["--checkpoint-dir", "c", "--resume-with=--resume x", "train.py"],
            "has no {checkpoint} in it: write for example",
        ),
        (
            ["--checkpoint-dir", "c", "--resume-with=--resume '{checkpoint}", "train.py"],
            "No closing quotation",
        ),
        (["--resume-with=--resume {checkpoint}", "train.py"], "needs --checkpoint-dir"),
    ],
)
def test_a_mistake(cwd, args, says):
    if "gpu" in args and os.path.exists("/proc/driver/nvidia"):
        pytest.skip("there is a GPU here")
    done = hpclaunch(*args, cwd=cwd)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("hpclaunch: error: ")
    assert says in line
    assert done.stdout == ""


def test_a_job_of_several_nodes_without_srun(cwd):
    env = environment(SLURM_JOB_ID=7, SLURM_JOB_NUM_NODES=2, SLURM_JOB_NODELIST="n[1-2]")
    done = hpclaunch("train.py", cwd=cwd, env=env)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "prefix with srun" in line


def test_an_interpreter_that_is_none(cwd):
    done = hpclaunch("train.py", cwd=cwd, env=environment(PYTHON_EXEC="/no/such/python"))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "PYTHON_EXEC=/no/such/python is not a program" in line


@pytest.mark.parametrize(
    ("closed", "args", "says"),
    [
        ("logs", ["--log-dir", "logs", "train.py"], "cannot write to the log directory logs"),
        ("points", ["--checkpoint-dir", "points", "train.py"], "cannot read the checkpoint dir"),
        ("secret.py", ["secret.py"], "cannot read the script secret.py: permission denied"),
    ],
)
def test_what_may_not_be_read_or_written(cwd, closed, args, says):
    path = cwd / closed
    path.touch() if path.suffix else path.mkdir()
    path.chmod(0o000)
    done = hpclaunch(*args, cwd=cwd, before=WITHOUT_ROOTS_RIGHTS)
    path.chmod(0o700)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert says in line


def test_help_and_version(cwd):
    assert "--max-restarts" in hpclaunch("--help", cwd=cwd).stdout
    assert hpclaunch("--version", cwd=cwd).stdout.startswith("hpclaunch ")


def test_help_does_not_load_the_agent(cwd):
    done = subprocess.run(
        [HPCLAUNCH, "--help"],
        env=environment(PYTHONPROFILEIMPORTTIME=1),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "argparse" in done.stderr
    for heavy in ("zmq", "psutil", "pynvml", "msgspec", "torch"):
        assert f" {heavy}\n" not in done.stderr
