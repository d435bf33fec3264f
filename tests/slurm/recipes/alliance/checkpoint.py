"""Rank 0 saves in place under one name; after a barrier, all ranks load what exists.

checkpoint.py [--resume FILE]; with --tear, rank 0 dies in round 0 with a half-written checkpoint.
"""
# ruff: noqa: T201

import argparse
import io
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from accident import accident
from datautils import Net, checksum, dataset
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--resume", default="./checkpoint_path")
parser.add_argument("--save", default="./checkpoint_path")
parser.add_argument("--tear", action="store_true")


def tear(state, path):
    whole = io.BytesIO()
    torch.save(state, whole)
    Path(path).write_bytes(whole.getvalue()[: whole.tell() // 2])
    os.kill(os.getpid(), signal.SIGKILL)


def main():
    args = parser.parse_args()
    dist.init_process_group("gloo")
    global_rank, first = dist.get_rank(), 0
    ddp_model = DistributedDataParallel(Net())
    if os.path.exists(args.resume):
        state = torch.load(args.resume, map_location="cpu")
        ddp_model.load_state_dict(state["model"])
        first = state["epoch"] + 1
    print(f"rank {global_rank} starts at epoch {first}")
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
    data = dataset()
    loader = DataLoader(data, 32, sampler=DistributedSampler(data))
    for epoch in range(first, args.epochs):
        for step, (images, classes) in enumerate(loader):
            if (epoch, step) == (2, 1):
                accident(global_rank)
            optimizer.zero_grad()
            cross_entropy(ddp_model(images), classes).backward()
            optimizer.step()
        if global_rank == 0:
            state = {"model": ddp_model.state_dict(), "epoch": epoch}
            path = args.save.format(epoch=epoch)
            if args.tear and epoch == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                tear(state, path)
            torch.save(state, path)
        dist.barrier()
        state = torch.load(args.save.format(epoch=epoch), map_location="cpu")
        ddp_model.load_state_dict(state["model"])
        dist.barrier()
    total = checksum(ddp_model.parameters())
    print(f"rank {global_rank} of {dist.get_world_size()}: weights {total:.9f}")
    del ddp_model, optimizer
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
