"""Initialise process groups by all of torch's methods, in each round; kill rank 1 in the first one.

    meet.py PORT FILE    for tcp:// (on the host of rank 0), and for file://

At the end, each rank prints a line, which also says whether it was forked from a template.
"""
# ruff: noqa: T201 -- the tests read the output

import gc
import os
import resource
import signal
import sys

import torch
import torch.distributed as dist
from torch.distributed import rpc

WARM = gc.get_freeze_count() > 0

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ROUND = os.environ["TORCHELASTIC_RESTART_COUNT"]


def meet(way: str, **how: object) -> None:
    dist.init_process_group("gloo", **how)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == WORLD, f"{way}: {total.item()} of {WORLD}"
    dist.barrier()
    dist.destroy_process_group()


def call() -> None:
    options = None
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 512:  # four ranks take 300 open files each
        options = rpc.TensorPipeRpcBackendOptions(_transports=["uv"], _channels=["basic"])
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=WORLD, rpc_backend_options=options)
    assert rpc.rpc_sync(f"worker{(RANK + 1) % WORLD}", abs, args=(-RANK,)) == RANK
    rpc.shutdown()


def main(port: str, file: str) -> None:
    ranks = {"rank": RANK, "world_size": WORLD}
    address = os.environ["MASTER_ADDR"]
    meet("tcp://", init_method=f"tcp://{address}:{port}", **ranks)
    meet("file://", init_method=f"file://{os.path.abspath(file)}", **ranks)
    call()  # by env://, as below
    dist.init_process_group("gloo")
    dist.barrier()
    start = "warm" if WARM else "cold"
    print(f"{start}, round {ROUND}: rank {RANK} of {WORLD} has met all", flush=True)
    if ROUND == "0" and RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    dist.destroy_process_group()


main(*sys.argv[1:])
