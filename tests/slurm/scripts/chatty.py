"""Training that prints a line at every step: chatty.py --until FILE [--pad BYTES]

It ends when FILE exists; rank 0 then writes the number of steps to the file `steps`.
"""
# ruff: noqa: T201 -- it tests the output

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", type=Path, required=True)
    parser.add_argument("--pad", type=int, default=0)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, steps, over = dist.get_rank(), 0, torch.zeros(1)
    while not over:
        time.sleep(0.05)
        print(f"rank {rank} step {steps}{' ' * args.pad}", flush=True)
        steps += 1
        over.fill_(args.until.exists())
        dist.all_reduce(over)
    if rank == 0:
        Path("steps").write_text(str(steps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
