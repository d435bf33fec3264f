"""Measure what it costs, and try whether it is safe, to dump NCCL's flight recorder beside fast
collectives, as the launcher does now and then.

Ten thousand small all_reduces of one rank, alone and beside a thread that dumps without a pause.
"""

import os
import threading
import time

os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")
os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

ALL = 10_000


def seconds() -> float:
    total = torch.ones(1024, device="cuda")
    torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(ALL):
        dist.all_reduce(total)
    torch.cuda.synchronize()
    return time.monotonic() - began


def main() -> None:
    dist.init_process_group("nccl")
    seconds()
    alone, dumps, over = seconds(), [], threading.Event()

    def dump() -> None:
        while not over.is_set():
            began = time.monotonic()
            size = len(c10d._dump_nccl_trace_json(True, False))
            dumps.append((time.monotonic() - began, size))

    thread = threading.Thread(target=dump)
    thread.start()
    beside = seconds()
    over.set()
    thread.join()
    took = sorted(took for took, _ in dumps)
    print(f"{len(dumps)} dumps of {dumps[-1][1]} bytes, median {took[len(took) // 2] * 1e3:.1f} ms")
    print(
        f"an all_reduce alone {alone / ALL * 1e6:.1f} us, beside dumps {beside / ALL * 1e6:.1f} us"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
