"""Train with the same result in every run, and fail on request.

    train.py --dir DIR [--epochs N] [--fail ROUND:EPOCH:RANK]    SIGKILL in the middle of that epoch

Each rank prints where it starts and which epochs it does; rank 0 prints the result.
"""
# ruff: noqa: T201 -- the tests read the output

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist

STEPS = 4  # per epoch
SIZE = 4096


def save(state: dict, path: Path) -> None:
    draft = path.with_suffix(".tmp")
    torch.save(state, draft)
    draft.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--fail", default="")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    weights, first = torch.zeros(SIZE, dtype=torch.float64), 0
    checkpoint = os.environ["HPCLAUNCH_CHECKPOINT"]
    if checkpoint:
        state = torch.load(checkpoint)
        weights, first = state["weights"], state["epoch"] + 1
    print(f"rank {rank} starts at epoch {first} from {checkpoint or 'nothing'}")

    args.dir.mkdir(exist_ok=True)
    for epoch in range(first, args.epochs):
        print(f"rank {rank} does epoch {epoch}")
        for step in range(STEPS):
            here = f"{os.environ['TORCHELASTIC_RESTART_COUNT']}:{epoch}:{rank}"
            if step == STEPS // 2 and args.fail == here:
                os.kill(os.getpid(), signal.SIGKILL)
            seed = torch.Generator().manual_seed((epoch * STEPS + step) * world + rank)
            gradient = torch.randn(SIZE, generator=seed, dtype=torch.float64)
            dist.all_reduce(gradient)
            weights = 0.9 * weights + gradient / world
        if rank == 0:
            save({"weights": weights, "epoch": epoch}, args.dir / f"epoch-{epoch}.pt")
        dist.barrier()  # no rank begins an epoch before the previous one is saved
    if rank == 0:
        print(f"final {weights.square().sum().item()!r}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
