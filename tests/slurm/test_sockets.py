"""A running job listens only where docs/security.md says."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hpclaunch.system.network.zmq_channel import PORTS

from .cluster import Cluster, eventually
from .conftest import AGENT, FORK_SERVER, ROOT, WORKER, Launch

# Both ranks also start a process that connects to the store, by another name of its node.
TRAIN = """
import multiprocessing, os, time, torch.distributed as dist

def ask(name):
    dist.TCPStore(name, int(port)).get("key")

rank, port = int(os.environ["RANK"]), os.environ["MASTER_PORT"]
name = ["localhost", "n1"][rank]
client = multiprocessing.get_context("fork").Process(target=ask, args=[name])
client.start()
dist.init_process_group("gloo")
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(port))
store.set("key", "value")
client.join()
assert client.exitcode == 0
dist.barrier()
os.rename(open(f"draft-{rank}", "w").name, f"up-{rank}-{port}")
while not os.path.exists("enough"):
    time.sleep(0.05)
dist.destroy_process_group()
"""
AGENTS, STORE, GUARD = "every agent", "the round's store", "the fork server"
WITH_METRICS = "the process that serves metrics, only with `--metrics PORT` or `ADDRESS:PORT`"
WITH_STAGE = (
    "on every node, the process that copies checkpoints from memory (the *stager*), only with "
    "`--stage` on several nodes"
)
NOT_OURS = r"^(\S*/)?(slurmd|slurmstepd|srun|slurmctld|munged)\b"


class Listener(NamedTuple):
    """A socket that listens: its process, as named in the table, and its address."""

    who: str
    address: str
    port: int


def in_the_table() -> dict[str, str]:
    """Return {process: address} from the table in docs/security.md."""
    text = (ROOT / "docs" / "security.md").read_text()
    table = text[text.index("| process | address |") :].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {process.partition(", on the")[0]: address for process, address, *_ in rows[2:]}


def listeners(cluster: Cluster, host: str) -> Iterator[Listener]:
    """Yield the listening TCP and UDP sockets, without those of Slurm and of the workers.

    Also check the two Unix sockets: one where the agent answers its user, and one that does not
    listen, whose name reserves the agent's place.
    """
    listing = cluster.on(host, ["ss", "-H", "-l", "-n", "-p", "-t", "-u"])
    for line in listing.splitlines():
        local, process = line.split()[4], re.search(r"pid=(\d+)", line)
        assert process, line
        command = cluster.on(host, ["cat", f"/proc/{process[1]}/cmdline"]).replace("\0", " ")
        name = cluster.on(host, ["cat", f"/proc/{process[1]}/comm"]).strip()
        if re.search(NOT_OURS, command):
            continue
        if name == "hpclaunch-torch":
            who = STORE
        elif re.search(FORK_SERVER, command):
            who = GUARD
        elif re.search(AGENT, command):
            who = AGENTS
        else:
            assert re.search(WORKER, command), line
            continue
        address, _, port = local.rpartition(":")
        yield Listener(who, "all" if address in ("*", "0.0.0.0", "[::]") else address, int(port))
    unix = cluster.on(host, ["ss", "-H", "-l", "-n", "-p", "-x"]).splitlines()
    view, place = sorted(line for line in unix if "slurm" not in line)
    assert re.search(rf" @hpclaunch/{os.geteuid()}/[0-9a-f]{{16}} .*hpclaunch", view), view
    held = rf"^u_str +UNCONN .* @hpclaunch {os.geteuid()} [0-9a-f]{{64}} .*hpclaunch"
    assert re.search(held, place), place


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_only_documented_sockets_listen(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    more = {"env": {"OMP_NUM_THREADS": "1"}, "usual": True}  # for the name of the process
    job = launch("--nproc", 1, tmp_path / "train.py", nodes=2, **more)
    eventually("two workers", lambda: len(list(tmp_path.glob("up-*"))) == 2)
    (port,) = {int(path.name.split("-")[2]) for path in tmp_path.glob("up-*")}
    found = {host: sorted(listeners(cluster, host)) for host in ("n1", "n2")}
    for process in cluster.processes():
        assert not re.search(rf"\b{port}\b", process.command), "command lines are public"
    (tmp_path / "enough").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)

    agents = [one for host in found.values() for one in host if one.who == AGENTS]
    assert all(one.port in PORTS for one in agents)
    assert len(agents) == 2
    store = [Listener(GUARD, "all", port), Listener(STORE, "all", port)]
    others = {host: [one for one in found[host] if one.who != AGENTS] for host in found}
    assert others == {"n1": store, "n2": []}

    table = in_the_table()
    assert table.pop(WITH_METRICS), "see tests/slurm/test_metrics.py"
    assert table.pop(WITH_STAGE), "see tests/system/staging/test_mesh.py"
    assert table == {one.who: one.address for host in found.values() for one in host}
