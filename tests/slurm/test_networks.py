"""Agents and workers that cannot use the addresses of the nodes' names."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from .cluster import Cluster
from .conftest import AGENT, LIGHT_TORCH, NEW_HEAD, PATIENT, SCRIPTS, Launch

PORT = 15123  # neither one of the agents' usual ports nor an ephemeral one
MEET = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([1])
dist.all_reduce(total)
rank, host = os.environ["RANK"], os.uname().nodename
print(rank, "of", int(total[0]), host, os.environ["MASTER_ADDR"], os.environ["GLOO_SOCKET_IFNAME"])
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "meet.py"
    path.write_text(MEET)
    return path


@contextmanager
def firewall(cluster: Cluster) -> Iterator[None]:
    """Close the agents' usual ports at the addresses of the nodes' names."""
    with cluster.refusing(cluster.nodes, cluster.nodes):
        yield


def met(launch: Launch, *args: object, **options: object) -> list[str]:
    """Run the script on two nodes; return the lines of its ranks."""
    ended = launch("--nproc", 1, *args, nodes=2, **options).wait()
    assert ended.code == 0, str(ended)
    return sorted(line for line in ended.output.splitlines() if " of 2 " in line)


@pytest.mark.usefixtures("light_torch")
@pytest.mark.parametrize(
    "options",
    [[], ["--rdzv-backend=c10d", "--rdzv-endpoint=10.78.0.11:29500"]],
    ids=["Slurm knows the addresses", "the user gives one"],
)
def test_names_that_only_their_own_node_resolves(
    cluster: Cluster, launch: Launch, script: Path, options: list[str]
) -> None:
    with cluster.without_names():
        lines = met(launch, *options, script)
    assert lines == ["0 of 2 n1 10.78.0.11 eth0", "1 of 2 n2 10.78.0.11 eth0"]


@pytest.mark.usefixtures("light_torch")
@pytest.mark.parametrize("names", [firewall, nullcontext], ids=["alone", "first"])
def test_a_network_other_than_that_of_the_host_names(
    cluster: Cluster,
    launch: Launch,
    script: Path,
    names: Callable[[Cluster], AbstractContextManager[None]],
) -> None:
    """The user's address takes precedence over the host names, if both reach the first node."""
    with cluster.with_second_network(), names(cluster):
        lines = met(launch, "--rdzv-backend=c10d", "--rdzv-endpoint=n1i:29500", script)
    assert lines == ["0 of 2 n1 10.79.0.11 ib0", "1 of 2 n2 10.79.0.11 ib0"]


@pytest.mark.usefixtures("light_torch")
def test_a_firewall_that_lets_the_port_of_the_user_through(
    cluster: Cluster, launch: Launch, script: Path
) -> None:
    with firewall(cluster):
        lines = met(launch, "--master-addr=n1", f"--master-port={PORT}", script)
    assert lines == ["0 of 2 n1 10.78.0.11 eth0", "1 of 2 n2 10.78.0.11 eth0"]


def test_another_head_is_found_at_the_port_of_the_user(cluster: Cluster, launch: Launch) -> None:
    """The nodes have no resolvable names, and a firewall."""
    options = ["--nnodes=2:3", *PATIENT, "--rdzv-backend=c10d"]
    with cluster.without_names(), firewall(cluster):
        options.append(f"--rdzv-endpoint=10.78.0.11:{PORT}")
        job = launch("--nproc", 1, *options, SCRIPTS / "simple.py", "--until", "go")
        job.wait_for_workers(3)
        job.forget()
        agent = cluster.process(AGENT, host="n1")
        agent.kill()
        job.wait_for_workers(2)
        (job.directory / "go").touch()
        ended = job.wait()
    assert {job.codes[task] for task in (1, 2)} == {0}, str(ended)
    assert NEW_HEAD.search(ended.output)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
@pytest.mark.parametrize(
    ("address", "env"), [("ib0", {}), ("$(hostname)i", LIGHT_TORCH)], ids=["ib0", "$(hostname)i"]
)
def test_an_address_of_every_node(
    cluster: Cluster, launch: Launch, script: Path, address: str, env: dict[str, str]
) -> None:
    """The agents use the network of the names, the workers and their store the other one."""
    srun = f"srun bash -c 'exec hpclaunch --local-addr={address} \"$@\"' -"
    with cluster.with_second_network():
        lines = met(launch, script, srun=srun, env=env)
    assert lines == ["0 of 2 n1 10.79.0.11 ib0", "1 of 2 n2 10.79.0.11 ib0"]
