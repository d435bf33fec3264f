"""Measure the cost of dumping the flight recorder during fast collectives, and test its safety. The
launcher dumps NCCL's recorder only when it suspects a hang, and gloo's every 10 s.

    recorder.py [--backend nccl]

One rank does ten thousand small all_reduces, alone and beside a thread that dumps with short
pauses. Without pauses they would starve, since the thread would always take the recorder's lock.
"""

import argparse
import faulthandler
import os
import threading
import time

os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")
os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

ALL = 10_000
PAUSE = 0.02  # seconds


def seconds(device: str) -> float:
    total = torch.ones(1024, device=device)
    total[0].item()
    began = time.monotonic()
    for _ in range(ALL):
        dist.all_reduce(total)
    total[0].item()
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl")
    on_gpu = parser.parse_args().backend == "nccl"
    device = "cuda" if on_gpu else "cpu"
    dump = c10d._dump_nccl_trace_json if on_gpu else c10d._dump_fr_trace_json
    faulthandler.dump_traceback_later(20)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    seconds(device)
    print("the process group is ready", flush=True)
    alone, dumps, over = seconds(device), [], threading.Event()

    def dump_again() -> None:
        while not over.wait(PAUSE):
            began = time.monotonic()
            size = len(dump(True, False))
            dumps.append((time.monotonic() - began, size))

    print(f"an all_reduce alone {alone / ALL * 1e6:.1f} us", flush=True)
    thread = threading.Thread(target=dump_again)
    thread.start()
    beside = seconds(device)
    over.set()
    thread.join()
    took = sorted(took for took, _ in dumps)
    print(f"{len(dumps)} dumps of {dumps[-1][1]} bytes, median {took[len(took) // 2] * 1e3:.1f} ms")
    print(f"an all_reduce beside dumps {beside / ALL * 1e6:.1f} us")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
