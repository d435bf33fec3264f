"""No node is lost when file systems, name servers or helpers do not answer for a while."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hpclaunch.core.protocol.node_facts import HelperEnded
from hpclaunch.system.logs import fact_files

from .cluster import Cluster, Job, eventually
from .conftest import AGENT, PATIENT, SCRIPTS, Launch
from .training import finish, train, wait_for_progress

HELPER = r"'main'.* hpclaunch\.(?!worker\.fork_server)"
SIMPLE = SCRIPTS / "simple.py"
# Seconds. A stall lasts longer than any lease, and a busy machine delays no agent for this long.
LOSS, STALL = 6, 8.5
HELD_UP = re.compile(rf"this agent was held up for (?:[{LOSS}-9]|\d\d)\S* s")


HAS_FUSE = Path("/dev/fuse").exists()
needs_fuse = pytest.mark.skipif(not HAS_FUSE, reason="no FUSE in this kernel")


@contextmanager
def stalling(cluster: Cluster, directory: Path, *hosts: str) -> Iterator[Callable[..., None]]:
    """Mount a file system of its own on the directory of each host.

    Yield a function that makes all of them stall for a while, except for some calls.
    """
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
    """Return the directory below the host's file system of `stalling`."""
    return directory.with_suffix(f".{host}")


def require_no_delays(*logs: Path) -> None:
    """Require that no agent's loop was blocked."""
    for directory in logs:
        command = [sys.executable, "-m", "hpclaunch", "replay", str(directory)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert not HELD_UP.search(output), output


def lines(job: Job, rank: int) -> list[str]:
    """Return all lines of this rank of `scripts/chatty.py`, which has ended."""
    steps = int((job.directory / "steps").read_text())
    return [f"rank {rank} step {step}\n" for step in range(steps)]


def require_all_lines(job: Job, output: str, world: int) -> None:
    for rank in range(world):
        assert re.findall(rf"^rank {rank} .*\n", output, re.MULTILINE) == lines(job, rank)


@needs_fuse
@pytest.mark.usefixtures("light_torch")
def test_a_log_directory_that_stalls(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """Reads stall on the head's and another node, then writes too; the third node waits for both.

    No line is lost, on the console or in the files.
    """
    logs = tmp_path / "logs"
    with stalling(cluster, logs, "n1", "n2") as stall:
        script = (SCRIPTS / "chatty.py", "--until", "enough")
        options = ("--nproc", 1, "--nnodes", "2:3", "--loss-timeout", LOSS, "--log-dir", logs)
        job = launch(*options, *script)
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
    require_all_lines(job, ended.output, 3)
    require_no_delays(*directories)


@needs_fuse
@pytest.mark.usefixtures("light_torch")
def test_a_checkpoint_directory_that_stalls(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    saved, logs = tmp_path / "saved", tmp_path / "logs"
    with stalling(cluster, saved, "n1") as stall:
        visible = source(saved, "n1")
        options = ("--nnodes", "1:2", "--loss-timeout", LOSS, "--log-dir", logs)
        more = {"visible": visible, "nodes": 2}
        job = train(launch, saved, *options, "--max-restarts", 0, **more)
        stall()
        ended = finish(job, visible)
    assert ended.code == 0, str(ended)
    assert len(list(logs.glob("round-*"))) == 1, str(ended)
    require_no_delays(logs)


def test_helpers_that_are_killed(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """Each is replaced at once, is named, and is in the facts of its own node."""
    logs, saved = tmp_path / "logs", tmp_path / "saved"
    saved.mkdir()
    options = ("--nnodes", "1:2", *PATIENT, "--log-dir", logs, "--checkpoint-dir", saved)
    script = (SIMPLE, "--until", "enough")
    job = launch("--nproc", 1, *options, "--notify", "true", *script, nodes=2)
    job.wait_for_workers(2)
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
    "s.bind(('127.0.0.53', 53)); time.sleep(600)"
)


@pytest.mark.usefixtures("light_torch")
def test_a_name_server_that_does_not_answer(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """Agents know the address of the next head: a takeover needs no name lookup."""
    saved, logs = tmp_path / "saved", tmp_path / "logs"
    job = train(launch, saved, "--nnodes", "2:3", "--loss-timeout", LOSS, "--log-dir", logs)
    config = tmp_path / "nsswitch.conf"
    config.write_text("passwd: files\ngroup: files\nhosts: dns files\n")
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.53\noptions timeout:8 attempts:1\n")
    for host in ("n2", "n3"):
        server = f'{sys.executable} -c "{SILENT}" >/dev/null 2>&1 &'
        cluster.on(host, ["sh", "-c", server])
        cluster.on(host, ["mount", "--bind", str(config), "/etc/nsswitch.conf"])
        cluster.on(host, ["mount", "--bind", str(resolver), "/etc/resolv.conf"])
    try:
        agent = cluster.process(AGENT, host="n1")
        agent.kill()
        job.says("continuing without n1: 2 nodes")
    finally:  # the workers must look up the names of their own hosts
        for host in ("n2", "n3"):
            cluster.on(host, ["umount", "/etc/nsswitch.conf"])
            cluster.on(host, ["umount", "/etc/resolv.conf"])
            cluster.on(host, ["pkill", "-f", "127.0.0.53"])
    wait_for_progress(saved, 2)
    finish(job, saved)
    assert len(list(logs.glob("round-*"))) == 2
    require_no_delays(logs)
