"""The names of processes are bytes, of others' choice: whatever they are, nothing ends of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from hpclaunch.core.health.gpu_rules import GpuReading, History
from hpclaunch.system.gpus import gpu_watcher
from hpclaunch.system.hosts import slurm
from hpclaunch.worker import activity, mps_daemon, mps_keeper, processes

NOBODY = 65534
# A process that looks like an srun, of a name that can be chosen.
SRUN = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, b"srun", 0, 0, 0)
print(flush=True)
sys.stdin.read()
"""


def test_they_are_what_they_were_asked_to_be(strangers):
    for name, pid in strangers.items():
        with open(f"/proc/{pid}/comm", "rb") as f:
            assert f.read() == name + b"\n"
        assert os.stat(f"/proc/{pid}").st_uid == (NOBODY if os.geteuid() == 0 else os.geteuid())


@pytest.mark.parametrize(("options", "ends"), [((), True), (("--no-kill",), False)])
def test_whether_slurm_ends_the_step(strangers, options, ends):
    environ = {"SLURM_JOB_ID": "4711"}
    assert not slurm.ends_with_a_node(environ)
    srun = subprocess.Popen(
        [sys.executable, "-c", SRUN, *options, "hpclaunch"],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    srun.stdout.readline()
    try:
        assert slurm.ends_with_a_node(environ) is ends
    finally:
        srun.communicate()


def test_children_where_the_kernel_has_no_list_of_them(strangers, monkeypatch):
    def opened(path, *args):
        if path.endswith("/children"):
            raise FileNotFoundError(path)
        return open(path, *args)

    listed = processes.children()
    monkeypatch.setattr(processes, "open", opened, raising=False)
    assert sorted(processes.children()) == sorted(listed)
    assert set(strangers.values()) <= set(listed)


def test_what_the_processes_of_a_session_have_done(strangers):
    mine = os.getsid(0)
    # What other tests have left running, as daemons of their own sessions, is nobody's work.
    others = {pid for pid in processes.children() if os.getsid(pid) != mine}
    usage = activity._usage([mine, 1 << 30], others)
    assert {os.getpid(), *strangers.values()} <= usage[mine].keys()
    assert usage[mine][os.getpid()].bytes > 0
    assert usage[1 << 30] == {}


def test_what_a_process_catches(strangers):
    """A line of its status that is none, as its name has it, is not read as one."""
    for name, pid in strangers.items():
        assert processes.catches(pid, signal.SIGINT), name  # by Python
        for signum in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM):
            assert not processes.catches(pid, signum), (name, signum)


def test_users_of_mps(strangers, tmp_path):
    assert mps_daemon.users(str(tmp_path)) == []
    assert mps_daemon.end_users(str(tmp_path))


def test_clients_of_mps(strangers):
    assert set(strangers.values()) <= {*processes.all_pids()}
    assert not any(map(mps_keeper.has_cuda_context, strangers.values()))


def test_what_a_helper_has_left(strangers):
    assert set(strangers.values()) <= processes.descendants(())


def test_what_is_said_of_those_on_a_gpu_is_for_any_console(strangers):
    found = [gpu_watcher._process(pid, 1 << 30, dead=()) for pid in strangers.values()]
    assert [p.command for p in found] == ["mod?", ") R 1 (x", "a?SigCgt:?fffff", "?[31mred???"]
    foreign = [gpu_watcher.replace(p, user="else", ours=False) for p in found]
    findings = History().answer([GpuReading("GPU 0", processes=tuple(foreign), idle=True)])
    assert findings
    for finding in findings:
        assert finding.found.isprintable(), finding
