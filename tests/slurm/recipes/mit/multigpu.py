"""DDP by a script that starts its own processes, one per device, and fixes the port itself.

multigpu.py [--batch_size N] EPOCHS SAVE_EVERY
"""
# ruff: noqa: T201

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from datautils import Net, checksum, dataset
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def main(rank, world_size, epochs, save_every, batch_size):
    setup(rank, world_size)
    data = dataset()
    loader = DataLoader(data, batch_size, shuffle=False, sampler=DistributedSampler(data))
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for images, classes in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), classes)
            loss.backward()
            optimizer.step()
        if rank == 0 and epoch % save_every == 0:
            torch.save(model.module.state_dict(), "checkpoint.pt")
    print(f"rank {rank} of {world_size}: weights {checksum(model.parameters()):.9f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--batch_size", type=int, default=32)
    args = parser.parse_args()
    world_size = max(torch.cuda.device_count(), 2)
    arguments = (world_size, args.epochs, args.save_every, args.batch_size)
    mp.spawn(main, args=arguments, nprocs=world_size)
