"""FSDP by a script that starts its own processes, one per device of the node."""
# ruff: noqa: T201

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from datautils import Net, dataset
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler


def main(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    data = dataset()
    loader = DataLoader(data, 32, sampler=DistributedSampler(data, world_size, rank))
    model = Net()
    mesh = dist.init_device_mesh("cpu", (world_size,))
    for part in (model.conv, model.mlp, model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for images, classes in loader:
            optimizer.zero_grad()
            cross_entropy(model(images), classes).backward()
            optimizer.step()
    total = sum(p.full_tensor().detach().double().square().sum() for p in model.parameters())
    print(f"rank {rank} of {world_size}: weights {total:.9f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    world_size = max(torch.cuda.device_count(), 2)
    mp.spawn(main, args=(world_size,), nprocs=world_size, join=True)
