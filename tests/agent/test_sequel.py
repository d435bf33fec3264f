"""Who asks Slurm for another run, with commands of Slurm that are played."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys

import pytest

from hpclaunch.core.protocol.model import EXIT_SAVED, Job, Place, Requeueing, Sequel, Verdict

pytestmark = pytest.mark.starts

JOB = Job(
    (Place(0, 0, "n1"), Place(1, 1, "n2")),
    slurm_id="71",
    requeueing=Requeueing(resubmits=True),
)
SCONTROL = """#!/bin/sh
echo "$@" >> asked
[ "$1" = show ] && echo "JobId=71 JobName=job UserId=me(1) Requeue={} Restarts=$(cat restarts)"
[ "$1" = requeue ] && {{ {}; }}
exit 0
"""
# In a process of its own: signals that end it are blocked there.
PROGRAM = """
import pickle, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
from hpclaunch.agent import sequel
sequel.ASKED = float(sys.argv[2])
verdict, job, environ, leads = pickle.loads(bytes.fromhex(sys.argv[1]))
print("begins", flush=True)
sequel.carry_out(verdict, job, environ, leads=leads)
"""
FORBIDS = "echo no >&2; exit 1"


@pytest.fixture
def agent(tmp_path):
    running = []

    def begin(*, leads=True, sequel=Sequel.REQUEUE, may=1, says="true", asked=0.01):
        (tmp_path / "restarts").write_text("0")
        for name, text in (
            ("scontrol", SCONTROL.format(may, says)),
            ("squeue", "#!/bin/sh\ncat followers 2> /dev/null\ntrue\n"),
            ("sbatch", "#!/bin/sh\ncat > /dev/null\necho sbatch >> asked\necho 75\n"),
            ("scancel", '#!/bin/sh\necho scancel "$@" >> asked\n'),
        ):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        environ = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"}
        environ |= {"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
        verdict = Verdict(EXIT_SAVED, "", sequel=sequel)
        said = pickle.dumps((verdict, JOB, environ, leads)).hex()
        command = [sys.executable, "-c", PROGRAM, said, str(asked)]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout.readline() == "begins\n"
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def asked(tmp_path):
    try:
        return (tmp_path / "asked").read_text().splitlines()
    except FileNotFoundError:
        return []


RELEASES = "scancel --signal=TERM 71.0"


def test_the_head_asks(agent, tmp_path):
    _, said = agent().communicate(timeout=60)
    assert asked(tmp_path) == ["show job -o 71", "requeue 71"]
    assert said == "hpclaunch: job 71 is requeued: run 2 follows\n"


@pytest.mark.parametrize("sequel", [Sequel.REQUEUE, Sequel.RESUBMIT])
def test_the_others_wait_until_they_are_told(agent, tmp_path, sequel):
    process = agent(leads=False, sequel=sequel, asked=100)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    assert asked(tmp_path) == []


def test_another_launch_of_the_job_is_quicker(agent, tmp_path):
    _, said = agent(says=f"echo 1 > restarts; {FORBIDS}").communicate(timeout=60)
    assert asked(tmp_path) == ["show job -o 71", "requeue 71", "show job -o 71"]
    assert "was not requeued" not in said


def test_one_that_is_refused_for_now_is_not_submitted(agent, tmp_path):
    """Slurm may start it again after all."""
    _, said = agent(says=FORBIDS).communicate(timeout=60)
    assert said.endswith("hpclaunch: job 71 was not requeued: no\n")
    assert "sbatch" not in asked(tmp_path)
    assert asked(tmp_path)[-1] == RELEASES


@pytest.mark.parametrize(("sequel", "says"), [(Sequel.RESUBMIT, "true"), (Sequel.REQUEUE, FORBIDS)])
def test_the_script_is_submitted(agent, tmp_path, sequel, says):
    """Also if Slurm turns out not to start it again."""
    _, said = agent(sequel=sequel, may=0, says=says).communicate(timeout=60)
    assert asked(tmp_path)[-2:] == ["sbatch", RELEASES]
    assert "its script is submitted again, job 75 is run 2" in said


def test_another_waits_already(agent, tmp_path):
    (tmp_path / "followers").write_text("76 afterany:71(unfulfilled) job\n")
    _, said = agent(sequel=Sequel.RESUBMIT, may=0).communicate(timeout=60)
    assert asked(tmp_path) == ["show job -o 71", RELEASES]
    assert "job 76 waits for its end" in said
