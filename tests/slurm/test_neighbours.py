"""Other jobs and other people's programs on the same nodes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import surroundings
from hpclaunch.system.network import secret, zmq_channel
from hpclaunch.system.network.zmq_channel import BACKLOG

from .cluster import Cluster, eventually
from .conftest import ROOT, SCRIPTS, Launch
from .hosts import NETWORK

STAND_INS = ROOT / "tests" / "stand_ins"
NOBODY = str(NETWORK[250])  # an address of no host
SIMPLE = SCRIPTS / "simple.py"
_LISTEN = """
import socket, sys
listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("listening", flush=True)
while True:
    listener.accept()[0].sendall(b"SSH-2.0-stranger\\r\\n")
"""


@contextmanager
def stranger(cluster: Cluster, host: str, port: int) -> Iterator[None]:
    """Run a foreign program on a host that listens on a port."""
    command = cluster.nodes[host].command([sys.executable, "-c", _LISTEN, str(port)])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "stdout is a pipe"
        try:
            assert process.stdout.readline() == "listening\n"
            yield
        finally:
            for listener in cluster.processes(r"socket\.create_server", host=host):
                listener.kill()


def test_two_jobs_on_the_same_nodes(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """Two jobs run at the same time, and the first port of one of them is taken."""
    ours = [tmp_path / "a", tmp_path / "b"]
    for directory in ours:
        directory.mkdir()
    key = tmp_path / "secret"
    environment = {secret.VARIABLE: str(key)}
    jobs = [
        launch(
            *("--nproc", 1, SIMPLE, "--until", "enough"),
            directory=d,
            nodes=2,
            env=environment,
            options=["-H"],
        )
        for d in ours
    ]
    first, *_ = zmq_channel.derive(secret.load_or_create(key), f"{jobs[0].id}.0").ports
    with stranger(cluster, "n1", first):
        for job in jobs:
            cluster.on("ctl", ["scontrol", "release", str(job.id)])
        for job in jobs:
            job.wait_for_workers(2)
        for directory in ours:
            (directory / "enough").touch()
        for job in jobs:
            ended = job.wait()
            assert ended.code == 0, str(ended)
            assert "hpclaunch:" not in ended.output
            assert {env["WORLD_SIZE"] for env in job.environments().values()} == {"2"}
            assert {env["TORCHELASTIC_RUN_ID"] for env in job.environments().values()} == {
                f"{job.id}.0"
            }
    ports = {job.environments()[0]["MASTER_PORT"] for job in jobs}
    assert len(ports) == 2


_CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])).close()
    print("connected")
except TimeoutError:
    print("no answer")
"""


@pytest.mark.usefixtures("light_torch")
def test_only_nodes_of_the_job_reach_the_store(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """A foreign program on another node gets no answer from the port, in every round."""

    def answer(host: str, port: str, wait: float) -> str:
        target = [cluster.nodes["n1"].address, port, str(wait)]
        return cluster.on(host, [sys.executable, "-c", _CONNECT, *target]).strip()

    job = launch("--nproc", 1, SIMPLE, "--fail", "1:restart?:kill", "--until", "enough", nodes=2)
    for name in ("restart", "enough"):
        job.wait_for_workers(2)
        envs = job.environments()[1]
        assert envs["MASTER_ADDR"] == cluster.nodes["n1"].address
        assert answer("n4", envs["MASTER_PORT"], 2) == "no answer"
        for host in ("n1", "n2"):
            assert answer(host, envs["MASTER_PORT"], 20) == "connected"
        job.forget()
        (tmp_path / name).touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)


@contextmanager
def crowd(
    cluster: Cluster, program: str, host: str, port: int, *words: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a foreign program on the last node that holds connections to a port of a host."""
    target = [cluster.nodes[host].address, str(port), *words]
    command = cluster.nodes["n4"].command([sys.executable, str(STAND_INS / program), *target])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as process:
        assert process.stdout is not None, "stdout is a pipe"
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.communicate()


@pytest.mark.parametrize(
    ("program", "word"),
    [
        # More than the usual limit of open files; each closed connection is replaced by a new one.
        pytest.param(
            "crowd.py",
            "1200",
            marks=pytest.mark.skipif(
                "descriptors" in surroundings.entered, reason="needs more open files"
            ),
        ),
        # More than the kernel's queue: it must answer with SYN cookies.
        ("half_open.py", NOBODY),
    ],
    ids=["held", "half open"],
)
def test_many_foreign_connections_to_the_heads_port(
    cluster: Cluster, launch: Launch, tmp_path: Path, program: str, word: str
) -> None:
    """The last agent can nevertheless join, and a restart works."""
    key = tmp_path / "secret"
    late = """srun bash -c 'while [ "$SLURM_NODEID" = 1 ] && [ ! -e start ]; do sleep 0.1; done
        exec hpclaunch "$@"' bash"""
    arguments = ("--nproc", 1, SIMPLE, "--fail", "1:restart?:kill", "--until", "enough")
    job = launch(*arguments, srun=late, nodes=2, env={secret.VARIABLE: str(key)})
    port = zmq_channel.derive(secret.load_or_create(key), f"{job.id}.0").ports[0]
    with crowd(cluster, program, "n1", port, word) as strangers:
        if program == "half_open.py":
            begun = ["ss", "-tanH", "state", "syn-recv"]
            full = min(BACKLOG, int(cluster.on("n1", ["cat", "/proc/sys/net/core/somaxconn"])))
            eventually("a full queue", lambda: cluster.on("n1", begun).count("\n") >= full)
        (tmp_path / "start").touch()
        job.wait_for_workers(2)
        job.forget()
        (tmp_path / "restart").touch()
        job.wait_for_workers(2)
        assert strangers.poll() is None
        (tmp_path / "enough").touch()
        ended = job.wait()
    assert ended.code == 0, str(ended)
    assert "rank 1 on n2 was killed by SIGKILL; restart 1 of 3\n" in ended.output
    assert "lost" not in ended.output
