"""Several machines without Slurm: hpclaunch is started by hand on the cluster's nodes."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from surroundings import LIGHT_TORCH

from .cluster import Cluster, eventually

TRAIN = """
import os, signal, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.tensor([1])
dist.all_reduce(total)
if rank == 3 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
"""
RPC = """
import resource
from torch.distributed import rpc
options = None
if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 512:  # four ranks take 300 open files each
    options = rpc.TensorPipeRpcBackendOptions(_transports=["uv"], _channels=["basic"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world, rpc_backend_options=options)
assert rpc.rpc_sync(f"worker{(rank + 1) % world}", abs, args=(-rank,)) == rank
rpc.shutdown()
"""
END = """
if rank in (0, 3):
    print("rank", rank, "of", int(total[0]), "on", os.uname().nodename, os.environ["MASTER_ADDR"])
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("options", "script", "path"),
    [
        ("--rdzv-backend=c10d --rdzv-endpoint=n1 --rdzv-id=7", TRAIN + RPC + END, ""),
        ("--master-addr=n1 --node-rank=$(($(hostname | tr -d n) - 1))", TRAIN + END, LIGHT_TORCH),
    ],
    ids=["in any order", "numbered"],
)
def test_two_machines(
    cluster: Cluster, tmp_path: Path, options: str, script: str, path: str
) -> None:
    """The workers connect in the same way in both cases, so only the first one uses torch."""
    (tmp_path / "train.py").write_text(script)
    line = (
        f"cd '{tmp_path}'; export HOME=$PWD OMP_NUM_THREADS=1 PYTHONPATH='{path}'; "
        f"hpclaunch --nnodes=2 --nproc-per-node=2 {options} train.py 2>&1"
    )
    with ThreadPoolExecutor() as pool:
        second = pool.submit(cluster.on, "n2", ["bash", "-c", line])
        first = pool.submit(cluster.on, "n1", ["bash", "-c", line])
        text = first.result() + second.result()
    assert "rank 3 on n2 was killed by SIGKILL; restart 1 of 3" in text
    assert "rank 0 of 4 on n1 10.78.0.11" in text
    assert "rank 3 of 4 on n2 10.78.0.11" in text


WAIT = """
import os, time, torch.distributed as dist
dist.init_process_group("gloo")
open(f"of-{dist.get_world_size()}-{os.uname().nodename}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.1)
dist.destroy_process_group()
"""


@pytest.mark.usefixtures("light_torch")
def test_the_job_ends_with_the_first_of_three_machines(cluster: Cluster, tmp_path: Path) -> None:
    """All processes of the first machine are killed, so none reports a death. Then all restart."""
    (tmp_path / "train.py").write_text(WAIT)
    line = (
        f"cd '{tmp_path}'; export HOME=$PWD OMP_NUM_THREADS=1; "
        "hpclaunch --nnodes=2:3 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=n1 "
        "train.py 2>&1; echo exit code $?"
    )
    hosts = ("n1", "n2", "n3")

    def begin() -> list[Future[str]]:
        return [pool.submit(cluster.on, host, ["bash", "-c", line]) for host in hosts]

    def until_they_train() -> None:
        files = [tmp_path / f"of-3-{host}" for host in hosts]
        eventually(f"{files}", lambda: all(file.exists() for file in files))
        for file in files:
            file.unlink()

    def end() -> None:
        (tmp_path / "go").touch()

    with ThreadPoolExecutor() as pool, ExitStack() as at_last:
        at_last.callback(end)
        lost, *others = begin()
        until_they_train()
        for process in cluster.processes(host="n1"):
            with suppress(ProcessLookupError):  # it may have ended together with another
                process.kill()
        assert lost.exception() is not None
        for text in (each.result() for each in others):
            assert "the head on n1 was lost: " in text
            assert "Without Slurm, a job ends with its first machine" in text
            assert text.endswith("exit code 1\n")
        again = begin()
        until_they_train()
        end()
        for text in (each.result() for each in again):
            assert text.endswith("exit code 0\n"), text
