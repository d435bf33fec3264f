"""Training whose result does not depend on the number of workers or on interruptions.

    elastic.py --dir DIR --until FILE

Each epoch takes half a second; the last one begins when FILE exists. After each epoch, rank 0 saves
a checkpoint to DIR and appends "epoch host workers" to DIR/writers. At the end, it prints the
result. A worker that finds DIR/raise.<host> removes it and raises an error with its text.
"""
# ruff: noqa: T201 -- the tests read the output

import argparse
import itertools
import os
import time
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from sums import after, share


def raise_requested_error(file: Path) -> None:
    """Raise an error with the text of the file, if it exists; only one of several workers does."""
    with suppress(FileNotFoundError):
        text = file.read_text()
        file.unlink()
        raise RuntimeError(text)


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
        raise_requested_error(args.dir / f"raise.{host}")
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
