"""Signals for several processes at once, and the variables of a process."""

import os
import resource
import signal
import subprocess

import psutil
import pytest

from hpclaunch.worker.processes import signal_all, to_group, variable

pytestmark = pytest.mark.starts


def test_a_shell_gets_a_signal_before_the_program_that_it_waits_for(monkeypatch):
    """Otherwise it could start the next program before its own signal came."""
    command = "sh -c 'echo up; sleep 600; echo went on'; echo went on"
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout.readline() == "up\n"
        top = psutil.Process(outer.pid)
        while len(below := top.children(recursive=True)) < 2:
            pass
        inner, program = (process.pid for process in below)
        signalled, kill = [], os.kill

        def noted(pid, signum):
            signalled.append(pid)
            kill(pid, signum)

        monkeypatch.setattr(os, "kill", noted)
        signal_all([program, inner, outer.pid], signal.SIGTERM)
        assert signalled == [outer.pid, inner, program]
        assert outer.stdout.read() == ""


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError])
def test_a_young_worker_that_cannot_be_signalled_is_passed_over(monkeypatch, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr(os, "kill", refuse)
    with subprocess.Popen(["true"]) as process:  # in this process's group
        to_group(process.pid, signal.SIGTERM)


def test_the_last_variable_of_a_large_environment_is_found():
    """With a large stack limit, arguments and environment may take up to 6 MiB."""
    env = {f"V{number}": "x" * 100_000 for number in range(50)} | {"RANK": "7"}

    def allow() -> None:
        _, most = resource.getrlimit(resource.RLIMIT_STACK)
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 26, most))

    sleep = ["/bin/sleep", "600"]
    with subprocess.Popen(sleep, env=env, preexec_fn=allow) as process:
        found = variable(process.pid, "RANK")
        process.kill()
    assert found == "7"
