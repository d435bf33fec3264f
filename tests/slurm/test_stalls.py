"""File systems, name servers and helpers that do not answer for a while: no node is lost."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from .cluster import Cluster, eventually
from .conftest import AGENT, FORK_SERVER, SCRIPTS, Launch
from .training import finish, progress, train

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")

HELPER = r"'main'.* hpclaunch\.(?!worker\.fork_server)"
TELL = SCRIPTS / "tell.py"
STALL = 7.0  # seconds; longer than any lease
STEPS = 150
LAST = f"step {STEPS - 1}"
HELD_UP = re.compile(r"this agent was held up for (?:[3-9]|\d\d)\S* s")


needs_fuse = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE in this kernel")


@contextmanager
def stalling(
    cluster: Cluster, host: str, directory: Path, spared: str = ""
) -> Iterator[Callable[[], None]]:
    """On this host, the directory is on a file system that stalls for a while when what is yielded
    is called; all calls but the `spared` ones."""
    source, stalls = directory.with_suffix(".source"), directory.with_suffix(".stalls")
    for each in (directory, source):
        each.mkdir()
    script = str(SCRIPTS / "stalling.py")
    command = [sys.executable, script, str(source), str(directory), str(stalls)]
    cluster.on(host, command)

    def stall() -> None:
        stalls.write_text(spared)
        time.sleep(STALL)
        stalls.unlink()

    try:
        yield stall
    finally:
        stalls.unlink(missing_ok=True)
        cluster.on(host, ["umount", "--lazy", str(directory)])


def assert_nobody_waited(*logs: Path) -> None:
    """No agent's loop stood still."""
    for directory in logs:
        command = [sys.executable, "-m", "hpclaunch", "replay", str(directory)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert not HELD_UP.search(told), told


@needs_fuse
@pytest.mark.parametrize(
    ("host", "spared"),
    [("n1", "write flush"), ("n2", "write flush"), ("n1", "")],
    ids=["what the head reads", "what another node reads", "everything"],
)
def test_a_log_directory_that_stalls(
    host: str, spared: str, cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """If its worker has to wait, the others wait for it. No line is lost, here or in the files."""
    logs = tmp_path / "logs"
    with stalling(cluster, host, logs, spared) as stall:
        script = str(SCRIPTS / "chatty.py")
        job = launch("--nproc", 1, "--nnodes", "2:3", "--log-dir", logs, script, "--steps", STEPS)
        job.says("step 10")
        stall()
        ended = job.wait()
    assert ended.code == 0, str(ended)
    assert "was lost" not in ended.output
    directories = [logs, logs.with_suffix(".source")]
    assert [len(list(d.glob("round-*"))) for d in directories] == [1, 1]
    written = [out.read_text() for d in directories for out in d.glob("round-0/rank-*.out")]
    for rank in range(3):
        lines = "".join(f"rank {rank} step {step}\n" for step in range(STEPS))
        assert lines in written
        shown = re.findall(rf"^rank {rank} .*\n", ended.output, re.MULTILINE)
        assert "".join(shown) == lines
    assert_nobody_waited(*directories)


@needs_fuse
def test_a_checkpoint_directory_that_stalls(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    saved, logs = tmp_path / "saved", tmp_path / "logs"
    with stalling(cluster, "n1", saved) as stall:
        source = saved.with_suffix(".source")
        options = ("--nnodes", "2:3", "--log-dir", logs, "--max-restarts", 0)
        job = train(launch, saved, *options, there=source)
        stall()
        ended = finish(job, source)
    assert ended.code == 0, str(ended)
    assert len(list(logs.glob("round-*"))) == 1, str(ended)
    assert_nobody_waited(logs)


@pytest.mark.parametrize("when", ["step 0", "step 20", LAST])
def test_helpers_that_are_stopped(
    when: str, cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """Stop everything beside the agents and the workers, on all nodes. No line or round is lost."""
    logs, saved = tmp_path / "logs", tmp_path / "saved"
    saved.mkdir()
    options = ("--nnodes", "2:3", "--log-dir", logs, "--checkpoint-dir", saved, "--notify", "true")
    job = launch("--nproc", 1, *options, SCRIPTS / "chatty.py", "--steps", STEPS)
    job.says(when)
    for helper in [*cluster.processes(HELPER), *cluster.processes(FORK_SERVER)]:
        with suppress(ProcessLookupError):  # after the last step, some have ended
            helper.kill(signal.SIGSTOP)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert "was lost" not in ended.output
    assert len(list(logs.glob("round-*"))) == 1, str(ended)
    if when != LAST:
        assert "was stopped by a signal, and continues" in ended.output
    for rank in range(3):
        lines = "".join(f"rank {rank} step {step}\n" for step in range(STEPS))
        shown = re.findall(rf"^rank {rank} .*\n", ended.output, re.MULTILINE)
        assert "".join(shown) == lines


def test_helpers_that_are_killed(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """Each has a successor at once, and is named."""
    logs, saved = tmp_path / "logs", tmp_path / "saved"
    saved.mkdir()
    options = ("--nnodes", "2:3", "--log-dir", logs, "--checkpoint-dir", saved, "--notify", "true")
    job = launch("--nproc", 1, *options, TELL, "--until", "enough")
    job.until_all_run(3)
    first = [p for p in cluster.processes(HELPER) if "log_service" not in p.command]
    for helper in first:
        helper.kill()
    pids = {p.pid for p in first}

    def are_replaced() -> bool:
        others = [p for p in cluster.processes(HELPER) if p.pid not in pids]
        return len([p for p in others if "log_service" not in p.command]) == len(first)

    eventually("successors", are_replaced)
    (tmp_path / "enough").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert ended.output.count(" was killed and replaced") == len(first), str(ended)
    assert len(list(logs.glob("round-*"))) == 1


SILENT = (
    "import socket, time; s = socket.socket(type=socket.SOCK_DGRAM); "
    "s.bind(('127.0.0.53', 53)); time.sleep(60)"
)


def test_a_name_server_that_does_not_answer(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """Agents know where the next head is: no name is looked up when theirs is lost."""
    saved, logs = tmp_path / "saved", tmp_path / "logs"
    job = train(launch, saved, "--nnodes", "2:3", "--log-dir", logs)
    config = tmp_path / "nsswitch.conf"
    config.write_text("passwd: files\ngroup: files\nhosts: dns files\n")
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.53\noptions timeout:6 attempts:1\n")
    for host in ("n2", "n3"):
        server = f'{sys.executable} -c "{SILENT}" >/dev/null 2>&1 &'
        cluster.on(host, ["sh", "-c", server])
        cluster.on(host, ["mount", "--bind", str(config), "/etc/nsswitch.conf"])
        cluster.on(host, ["mount", "--bind", str(resolver), "/etc/resolv.conf"])
    try:
        (agent,) = cluster.processes(AGENT, host="n1")
        agent.kill()
        job.says("going on without n1: 2 nodes")
    finally:  # for the workers, which look up the names of their own hosts
        for host in ("n2", "n3"):
            cluster.on(host, ["umount", "/etc/nsswitch.conf"])
            cluster.on(host, ["umount", "/etc/resolv.conf"])
            cluster.on(host, ["pkill", "-f", "127.0.0.53"])
    progress(saved, 2)
    finish(job, saved)
    assert len(list(logs.glob("round-*"))) == 2
    assert_nobody_waited(logs)
