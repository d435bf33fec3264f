"""File systems, name servers and helpers that do not answer for a while: no node is lost."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from hpclaunch.core.protocol.node_facts import HelperEnded
from hpclaunch.system.logs import fact_files

from .cluster import Cluster, Job, eventually
from .conftest import AGENT, FORK_SERVER, SCRIPTS, Launch
from .hosts import Process
from .training import finish, progress, train

HELPER = r"'main'.* hpclaunch\.(?!worker\.fork_server)"
TELL = SCRIPTS / "tell.py"
STALL = 5.5  # seconds; longer than any lease
CONTINUES = "was stopped by a signal, and continues"
HELD_UP = re.compile(r"this agent was held up for (?:[3-9]|\d\d)\S* s")


HAS_FUSE = Path("/dev/fuse").exists()
needs_fuse = pytest.mark.skipif(not HAS_FUSE, reason="no FUSE in this kernel")


@contextmanager
def stalling(cluster: Cluster, directory: Path, *hosts: str) -> Iterator[Callable[..., None]]:
    """On each of these hosts, the directory is on a file system of its own, and these stall for a
    while when what is yielded is called; all calls but those that are spared."""
    stalls = directory.with_suffix(".stalls")
    directory.mkdir()

    def stall(spared: str = "") -> None:
        stalls.write_text(spared)
        try:
            time.sleep(STALL)
        finally:
            stalls.unlink()

    with ExitStack() as mounts:
        for host in hosts:
            own = source(directory, host)
            own.mkdir()
            script = str(SCRIPTS / "stalling.py")
            cluster.on(host, [sys.executable, script, str(own), str(directory), str(stalls)])
            mounts.callback(cluster.on, host, ["umount", "--lazy", str(directory)])
        yield stall


def source(directory: Path, host: str) -> Path:
    """Return where these tests see what is on the host's file system of `stalling`."""
    return directory.with_suffix(f".{host}")


def assert_nobody_waited(*logs: Path) -> None:
    """No agent's loop stood still."""
    for directory in logs:
        command = [sys.executable, "-m", "hpclaunch", "replay", str(directory)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert not HELD_UP.search(told), told


def lines(job: Job, rank: int) -> list[str]:
    """Return all that this rank of `scripts/chatty.py` has said, which has ended."""
    steps = int((job.directory / "steps").read_text())
    return [f"rank {rank} step {step}\n" for step in range(steps)]


def assert_no_line_is_lost(job: Job, output: str, world: int) -> None:
    for rank in range(world):
        assert re.findall(rf"^rank {rank} .*\n", output, re.MULTILINE) == lines(job, rank)


@needs_fuse
@pytest.mark.usefixtures("light_torch")
def test_a_log_directory_that_stalls(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """Reading stalls for the head and for another node, and then writing as well: the third node
    waits for their workers. No line is lost, here or in the files."""
    logs = tmp_path / "logs"
    with stalling(cluster, logs, "n1", "n2") as stall:
        script = (SCRIPTS / "chatty.py", "--until", "enough")
        job = launch("--nproc", 1, "--nnodes", "2:3", "--log-dir", logs, *script)
        job.says("step 10")
        stall("write flush")
        stall()
        (tmp_path / "enough").touch()
        ended = job.wait()
    assert ended.code == 0, str(ended)
    assert "was lost" not in ended.output
    directories = [source(logs, "n1"), source(logs, "n2"), logs]
    assert [len(list(d.glob("round-*"))) for d in directories] == [1, 1, 1]
    written = [(d / f"round-0/rank-{rank}.out").read_text() for rank, d in enumerate(directories)]
    assert written == ["".join(lines(job, rank)) for rank in range(3)]
    assert_no_line_is_lost(job, ended.output, 3)
    assert_nobody_waited(*directories)


@needs_fuse
@pytest.mark.usefixtures("light_torch")
def test_a_checkpoint_directory_that_stalls(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    saved, logs = tmp_path / "saved", tmp_path / "logs"
    with stalling(cluster, saved, "n1") as stall:
        there = source(saved, "n1")
        options = ("--nnodes", "1:2", "--log-dir", logs, "--max-restarts", 0)
        job = train(launch, saved, *options, there=there, nodes=2)
        stall()
        ended = finish(job, there)
    assert ended.code == 0, str(ended)
    assert len(list(logs.glob("round-*"))) == 1, str(ended)
    assert_nobody_waited(logs)


@pytest.mark.usefixtures("light_torch")
def test_helpers_that_are_stopped(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """Stop everything beside the agents and the workers, on all nodes: in the first step, later,
    and before the last one. No line or round is lost."""
    logs, saved = tmp_path / "logs", tmp_path / "saved"
    saved.mkdir()
    options = ("--nnodes", "1:2", "--log-dir", logs, "--checkpoint-dir", saved, "--notify", "true")
    job = launch("--nproc", 1, *options, SCRIPTS / "chatty.py", "--until", "enough", nodes=2)

    def stop() -> list[Process]:
        helpers = [*cluster.processes(HELPER), *cluster.processes(FORK_SERVER)]
        for helper in helpers:
            with suppress(ProcessLookupError):  # it has ended just now
                helper.kill(signal.SIGSTOP)
        return helpers

    for when in ("step 0", "step 20"):
        job.says(when)
        said = job.output.count(CONTINUES)
        helpers = stop()
        eventually("a helper continues", lambda: job.output.count(CONTINUES) > said)  # noqa: B023
        eventually("all continue", lambda: not any(p.is_held for p in helpers))  # noqa: B023
    stop()
    (tmp_path / "enough").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert "was lost" not in ended.output
    assert len(list(logs.glob("round-*"))) == 1, str(ended)
    assert_no_line_is_lost(job, ended.output, 2)


def test_helpers_that_are_killed(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """Each has a successor at once, is named, and is in the facts of its own node."""
    logs, saved = tmp_path / "logs", tmp_path / "saved"
    saved.mkdir()
    options = ("--nnodes", "1:2", "--log-dir", logs, "--checkpoint-dir", saved, "--notify", "true")
    job = launch("--nproc", 1, *options, TELL, "--until", "enough", nodes=2)
    job.until_all_run(2)
    first = [p for p in cluster.processes(HELPER) if "log_service" not in p.command]
    per_host = Counter(p.host for p in first)
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
    agents, _ = fact_files.read(logs)
    ends = [
        (run.host, f.host) for run in agents for _, f in run.facts if isinstance(f, HelperEnded)
    ]
    assert Counter(ends) == {(host, host): count for host, count in per_host.items()}
    assert len(list(logs.glob("round-*"))) == 1


SILENT = (
    "import socket, time; s = socket.socket(type=socket.SOCK_DGRAM); "
    "s.bind(('127.0.0.53', 53)); time.sleep(60)"
)


@pytest.mark.usefixtures("light_torch")
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
        job.says("continuing without n1: 2 nodes")
    finally:  # for the workers, which look up the names of their own hosts
        for host in ("n2", "n3"):
            cluster.on(host, ["umount", "/etc/nsswitch.conf"])
            cluster.on(host, ["umount", "/etc/resolv.conf"])
            cluster.on(host, ["pkill", "-f", "127.0.0.53"])
    progress(saved, 2)
    finish(job, saved)
    assert len(list(logs.glob("round-*"))) == 2
    assert_nobody_waited(logs)
