"""Training whose result is the same for any number of workers, however often it is interrupted.

    elastic.py --dir DIR --epochs N

Each epoch takes half a second. Rank 0 saves after every one, adds "epoch host" to `writers` there,
and says at the end how it came out.
"""
# ruff: noqa: T201 -- what a worker has to say goes to its standard output

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

ITEMS = 1000
PRIME = 1_000_003


def share(epoch: int, rank: int, world: int) -> int:
    return sum((item * item + epoch) % PRIME for item in range(rank, ITEMS, world))


def after(state: int, total: int) -> int:
    return (3 * state + total) % PRIME


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    state, first = 0, 0
    if checkpoint := os.environ["HPCLAUNCH_CHECKPOINT"]:
        saved = torch.load(checkpoint)
        state, first = saved["state"], saved["epoch"] + 1
    args.dir.mkdir(exist_ok=True)
    for epoch in range(first, args.epochs):
        time.sleep(0.5)
        total = torch.tensor(share(epoch, rank, world))
        dist.all_reduce(total)
        state = after(state, int(total))
        if rank == 0:
            draft = args.dir / f"epoch-{epoch}.tmp"
            torch.save({"state": state, "epoch": epoch}, draft)
            draft.rename(draft.with_suffix(".pt"))
            with (args.dir / "writers").open("a") as f:
                f.write(f"{epoch} {os.uname().nodename}\n")
        dist.barrier()
    if rank == 0:
        print(f"final {state}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
