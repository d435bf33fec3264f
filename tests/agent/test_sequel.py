"""Requests of agents to Slurm for another run, with stand-ins for Slurm's commands."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

from hpclaunch.core.protocol.model import EXIT_SAVED, Job, Origin, Place, Sequel, Verdict

pytestmark = pytest.mark.starts

JOB = Job(
    (Place(0, 0, "n1"), Place(1, 1, "n2")),
    slurm_id="71",
)
SCONTROL = """#!/bin/sh
echo "$@" >> calls
[ "$1" = show ] && echo "JobId=71 JobName=job UserId=me(1) Requeue=1 Restarts=$(cat restarts)"
[ "$1" = requeue ] && {{ {}; }}
exit 0
"""
# It runs in a process of its own, which blocks the signals that end it.
PROGRAM = """
import pickle, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
from hpclaunch.agent import sequel
sequel.ASKED, sequel.READ = map(float, sys.argv[2:])
verdict, job, environ, leads = pickle.loads(bytes.fromhex(sys.argv[1]))
print("begins", flush=True)
sequel.carry_out(verdict, job, environ, leads=leads)
"""
LIMIT = 120.0  # seconds; far more than any of this takes
FORBIDS = "echo no >&2; exit 1"


@pytest.fixture
def agent(tmp_path):
    running = []

    def begin(*, leads=True, says="true", asked=0.01, read=LIMIT, stderr=subprocess.PIPE):
        (tmp_path / "restarts").write_text("0")
        for name, text in (
            ("scontrol", SCONTROL.format(says)),
            ("scancel", '#!/bin/sh\necho scancel "$@" >> calls\n'),
        ):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        environ = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"}
        environ |= {"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
        verdict = Verdict(EXIT_SAVED, "", Origin.TIME_LIMIT, sequel=Sequel.REQUEUE)
        arguments = pickle.dumps((verdict, JOB, environ, leads)).hex()
        command = [sys.executable, "-c", PROGRAM, arguments, str(asked), str(read)]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        running.append(process)
        begins = process.stdout.readline()
        assert begins == "begins\n"
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def slurm_calls(tmp_path):
    try:
        return (tmp_path / "calls").read_text().splitlines()
    except FileNotFoundError:
        return []


RELEASES = "scancel --signal=TERM 71.0"


def test_the_head_asks_slurm(agent, tmp_path):
    _, output = agent().communicate(timeout=LIMIT)
    assert slurm_calls(tmp_path) == ["show job -o 71", "requeue 71"]
    assert output == "hpclaunch: job 71 is requeued: run 2 follows\n"


@pytest.fixture
def full():
    """Yield both ends of a pipe into which nothing more can be written."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"." * 4096)
    os.set_blocking(writer, True)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_the_head_asks_slurm_though_nobody_reads_the_console(agent, full, tmp_path):
    assert agent(stderr=full[1], read=0.1).wait(timeout=LIMIT) == 0
    assert slurm_calls(tmp_path) == ["show job -o 71", "requeue 71"]


def test_a_console_that_is_read_late_gets_the_message(agent, full):
    process = agent(stderr=full[1])
    time.sleep(1.0)
    os.read(full[0], 1 << 20)
    os.set_blocking(full[0], False)
    assert process.wait(timeout=LIMIT) == 0
    assert os.read(full[0], 1 << 20) == b"hpclaunch: job 71 is requeued: run 2 follows\n"


def test_the_others_wait_for_sigterm(agent, tmp_path):
    process = agent(leads=False, asked=600)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=LIMIT) == 0
    assert slurm_calls(tmp_path) == []


def test_another_launch_of_the_job_has_already_requeued_it(agent, tmp_path):
    _, output = agent(says=f"echo 1 > restarts; {FORBIDS}").communicate(timeout=LIMIT)
    assert slurm_calls(tmp_path) == ["show job -o 71", "requeue 71", "show job -o 71"]
    assert "was not requeued" not in output


def test_a_head_that_is_refused_lets_the_others_end(agent, tmp_path):
    _, output = agent(says=FORBIDS).communicate(timeout=LIMIT)
    assert output.endswith("hpclaunch: job 71 was not requeued: no\n")
    assert slurm_calls(tmp_path)[-1] == RELEASES
