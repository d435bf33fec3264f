"""Replicas that share one device: a task per replica, and no rank for init_process_group."""
# ruff: noqa: T201

import argparse
import os

import torch
import torch.distributed as dist
from datautils import Net, checksum, dataset
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--batch_size", type=int, default=16)
parser.add_argument("--init_method", default="tcp://127.0.0.1:3456")
parser.add_argument("--backend", default="mpi")


def main():
    args = parser.parse_args()
    rank = os.environ.get("SLURM_LOCALID")
    print(f"From Rank: {rank}, ==> Initializing Process Group...")
    dist.init_process_group(backend=args.backend, init_method=args.init_method)
    net = torch.nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
    data = dataset()
    for images, classes in DataLoader(data, args.batch_size, sampler=DistributedSampler(data)):
        optimizer.zero_grad()
        cross_entropy(net(images), classes).backward()
        optimizer.step()
    total = checksum(net.parameters())
    print(f"rank {rank} of {dist.get_world_size()}: weights {total:.9f}")
    del net, optimizer
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
