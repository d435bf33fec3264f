"""Training whose result is the same for any number of workers, however often it is interrupted.

    elastic.py --dir DIR --until FILE

Each epoch takes half a second; the last one begins once the file is there. Rank 0 saves after
every one, adds "epoch host workers" to `writers` there, and says at the end how it came out. A
worker that finds `raise.<host>` there removes it and raises what it says.
"""
# ruff: noqa: T201 -- what a worker has to say goes to its standard output

import argparse
import itertools
import os
import time
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from sums import after, share


def obey(wish: Path) -> None:
    """Raise what it says; of several workers only one does."""
    with suppress(FileNotFoundError):
        words = wish.read_text()
        wish.unlink()
        raise RuntimeError(words)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--until", type=Path, required=True)
    args = parser.parse_args()
    host = os.uname().nodename

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    state, first = 0, 0
    if checkpoint := os.environ["HPCLAUNCH_CHECKPOINT"]:
        saved = torch.load(checkpoint)
        state, first = saved["state"], saved["epoch"] + 1
    args.dir.mkdir(exist_ok=True)
    for epoch in itertools.count(first):
        time.sleep(0.5)
        obey(args.dir / f"raise.{host}")
        over = rank == 0 and args.until.exists()
        total = torch.tensor([share(epoch, rank, world), over])
        dist.all_reduce(total)
        state = after(state, int(total[0]))
        if rank == 0:
            draft = args.dir / f"epoch-{epoch}.tmp"
            torch.save({"state": state, "epoch": epoch}, draft)
            draft.rename(draft.with_suffix(".pt"))
            with (args.dir / "writers").open("a") as f:
                f.write(f"{epoch} {host} {world}\n")
        dist.barrier()
        if total[1]:
            break
    if rank == 0:
        print(f"final {state}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
