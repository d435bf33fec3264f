"""DDP with ranks from Slurm's variables and a rendezvous from an argument."""
# ruff: noqa: T201

import argparse
import os

import torch
import torch.distributed as dist
from accident import accident
from datautils import Net, checksum, dataset
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--batch_size", type=int, default=32)
parser.add_argument("--max_epochs", type=int, default=3)
parser.add_argument("--init_method", default="tcp://127.0.0.1:3456")
parser.add_argument("--dist-backend", default="gloo")
parser.add_argument("--world_size", default=1, type=int)


def main():
    args = parser.parse_args()
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES"))
    local_rank = int(os.environ.get("SLURM_LOCALID"))
    rank = int(os.environ.get("SLURM_NODEID")) * (args.world_size // nodes) + local_rank

    print(f"From Rank: {rank}, ==> Initializing Process Group...")
    dist.init_process_group(
        backend=args.dist_backend,
        init_method=args.init_method,
        world_size=args.world_size,
        rank=rank,
    )
    print("process group ready!")

    net = torch.nn.parallel.DistributedDataParallel(Net())
    data = dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    for epoch in range(args.max_epochs):
        sampler.set_epoch(epoch)
        for images, classes in loader:
            optimizer.zero_grad()
            cross_entropy(net(images), classes).backward()
            optimizer.step()
        if epoch == 1:
            accident(rank)

    print(f"rank {rank} of {args.world_size}: weights {checksum(net.parameters()):.9f}")
    del net, optimizer
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
