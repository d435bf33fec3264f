"""The doctor's checks of a host: this one, and hardware that it does not have."""

import resource
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hpclaunch.core.health.findings import Grade
from hpclaunch.system.hosts import checks, checks_torch, host
from surroundings import entered


def test_a_name_that_leads_nowhere():
    finding = checks.own_name("no-such-host.invalid", several=False)
    assert finding.grade is Grade.WARN
    assert "/etc/hosts" in finding.advice


def test_loopback_is_for_one_host_only():
    assert checks.own_name("localhost", several=False).grade is Grade.OK
    assert checks.own_name("localhost", several=True).grade is Grade.WARN


def test_an_address_of_another_host():
    finding = checks.own_name("192.0.2.7", several=True)
    assert finding.found == "192.0.2.7, 192.0.2.7: not an address of this host"


def test_an_address_of_this_host():
    addresses = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET and not entry.address.startswith("127.")
    ]
    if not addresses:
        pytest.skip("this host has none but loopback")
    assert checks.own_name(addresses[0], several=True).grade is Grade.OK


@pytest.mark.parametrize(
    ("name", "value", "grade"),
    [
        ("GLOO_SOCKET_IFNAME", "lo", Grade.OK),
        ("GLOO_SOCKET_IFNAME", "nope0", Grade.FAIL),
        ("GLOO_SOCKET_IFNAME", "lo,nope0", Grade.FAIL),
        ("NCCL_SOCKET_IFNAME", "l", Grade.OK),
        ("NCCL_SOCKET_IFNAME", "nope,lo", Grade.OK),
        ("NCCL_SOCKET_IFNAME", "=l", Grade.FAIL),
        ("NCCL_SOCKET_IFNAME", "=lo", Grade.OK),
        ("NCCL_SOCKET_IFNAME", "nope", Grade.FAIL),
        ("NCCL_SOCKET_IFNAME", "=nope,lo", Grade.OK),
        ("NCCL_SOCKET_IFNAME", "lo:1", Grade.OK),
        ("NCCL_SOCKET_IFNAME", "=lo:1", Grade.OK),
        ("NCCL_SOCKET_IFNAME", "nope,", Grade.FAIL),
        ("NCCL_SOCKET_IFNAME", "^nope", Grade.OK),
        ("NCCL_SOCKET_IFNAME", "^nope,", Grade.OK),
        ("NCCL_SOCKET_IFNAME", "^=nope", Grade.OK),
    ],
)
def test_interfaces(name, value, grade):
    (finding,) = checks.interfaces({name: value})
    assert finding.grade is grade


def test_no_interface_left():
    everything = ",".join(psutil.net_if_addrs())
    (finding,) = checks.interfaces({"NCCL_SOCKET_IFNAME": f"^{everything}"})
    assert finding.grade is Grade.FAIL
    assert checks.interfaces({}) == []


def test_more_workers_than_cpus():
    assert checks.cpus(10_000).grade is Grade.WARN


def test_more_workers_than_memory():
    assert checks.memory(100_000, None).grade is Grade.WARN


needs_2048_files = pytest.mark.skipif(
    "descriptors" in entered, reason="the hard limit cannot be raised to 2048"
)


@pytest.mark.starts
@pytest.mark.parametrize(
    ("limit", "value", "agents", "grade", "advice"),
    [
        pytest.param(
            *("NOFILE", (512, 2048), 1, "warn", "ulimit -n 1024 (the hard limit allows it)"),
            marks=needs_2048_files,
        ),
        pytest.param("NOFILE", (512, 2048), 500, "warn", "ulimit -n 1024", marks=needs_2048_files),
        ("NOFILE", (128, 256), 1, "warn", "ulimit -n 1024"),
        ("NOFILE", (128, 256), 500, "FAIL", "ulimit -Hn 552; or ask for LimitNOFILE=552 of slurmd"),
        ("AS", (1 << 36, 1 << 36), 1, "warn", "ulimit -v unlimited"),
        ("CPU", (3600, 3600), 1, "warn", "not on a login node"),
    ],
)
def test_limits(limit, value, agents, grade, advice):
    program = (
        "import resource; from hpclaunch.system.hosts import checks\n"
        f"number = resource.RLIMIT_{limit}\n"
        f"resource.setrlimit(number, {value})\n"
        f"finding = checks.limits({agents}, 2); print(finding.grade.value, finding.advice)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith(f"{grade} "), done.stderr
    assert advice in done.stdout


def test_limits_are_named():
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert f"open files {'unlimited' if soft < 0 else soft}" in checks.limits(1, 1).found


def test_a_log_directory_that_is_not_there_yet(tmp_path):
    finding = checks.log_directory(tmp_path / "some" / "logs")
    assert finding.grade is not Grade.FAIL
    assert finding.found.startswith(f"{tmp_path} is writable")
    assert list(tmp_path.iterdir()) == []


def test_a_log_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    finding = checks.log_directory(tmp_path / "file" / "logs")
    assert finding.grade is Grade.FAIL
    assert "--log-dir" in finding.advice


def test_a_log_directory_above_which_nothing_can_be_read(tmp_path):
    directory = tmp_path / ("x" * 300)
    finding = checks.log_directory(directory)
    assert finding.grade is Grade.FAIL
    assert finding.found.startswith(f"cannot write to {directory}: ")


def test_file_systems():
    assert checks.file_system(Path("/proc/self")) == "proc"
    assert checks.file_system(Path("/")) != "proc"


@pytest.mark.parametrize(
    "check", [lambda: checks.clock(host.clock_is_synchronised()), checks.shared_memory]
)
def test_this_host_has_something_to_say(check):
    finding = check()
    assert finding.found
    assert finding.grade is Grade.OK or finding.advice


# The workers' torch


@pytest.fixture
def interpreter(tmp_path):
    """Return a function that makes a stand-in for the workers' interpreter."""

    def make(script):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


def ask(python, limit=200):
    return checks_torch.Question(python).answer(limit)


@pytest.mark.starts
def test_the_torch_that_is_here():
    version = pytest.importorskip("torch.version")
    finding, torch = ask(sys.executable)
    assert finding.grade is Grade.OK
    assert torch.version == version.__version__
    assert finding.found.startswith(torch.version)


@pytest.mark.starts
def test_an_interpreter_without_torch(interpreter):
    finding, torch = ask(interpreter(f'exec {sys.executable} -I -S "$@"'))
    assert (finding.grade, torch) == (Grade.FAIL, None)
    assert "No module named 'torch'" in finding.found
    assert "PYTHON_EXEC" in finding.advice


@pytest.mark.starts
def test_an_interpreter_that_takes_too_long(interpreter):
    finding, torch = ask(interpreter("exec sleep 600"), limit=0.1)
    assert (finding.grade, torch) == (Grade.WARN, None)


@pytest.mark.starts
def test_an_interpreter_that_cannot_be_killed_holds_up_nothing(interpreter, monkeypatch):
    monkeypatch.setattr(checks_torch, "KILL_LIMIT", 0.1)
    question = checks_torch.Question(interpreter("exec sleep 600"))
    with question._process as process:
        with monkeypatch.context() as in_kernel:
            in_kernel.setattr(process, "kill", lambda: None)
            finding, torch = question.answer(0.1)
        process.kill()
    assert (finding.grade, torch) == (Grade.WARN, None)


@pytest.mark.starts
def test_an_interpreter_that_dies_without_a_word(interpreter):
    finding, _ = ask(interpreter("exit 3"))
    assert finding.grade is Grade.FAIL
    assert finding.found.endswith("exit code 3")


@pytest.mark.starts
def test_no_interpreter():
    with pytest.raises(OSError, match="No such file"):
        checks_torch.Question("/no/such/python")


@pytest.mark.starts
@pytest.mark.parametrize(
    ("change", "grade", "words"),
    [
        ({}, Grade.OK, "2.13.0+cu130, CUDA 13.0, NCCL 2.28.9, in Python 3.12.1"),
        ({"cuda": "", "nccl": ""}, Grade.OK, "for CPUs only"),
        ({"version": "2.3.1"}, Grade.WARN, "2.3.1"),
        ({"version": "2.13.0a0+git1"}, Grade.OK, "2.13.0a0"),
        ({"distributed": False}, Grade.FAIL, "without torch.distributed"),
    ],
)
def test_what_torch_says_of_itself(interpreter, change, grade, words):
    import json

    said = {
        "python": "3.12.1",
        "version": "2.13.0+cu130",
        "cuda": "13.0",
        "gpus": 4,
        "distributed": True,
        "nccl": "2.28.9",
    }
    finding, torch = ask(interpreter(f"echo a banner; echo '{json.dumps(said | change)}'"))
    assert (finding.grade, torch.gpus) == (grade, 4)
    assert words in finding.found
