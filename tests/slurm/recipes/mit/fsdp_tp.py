"""Tensor parallel over pairs of neighbouring ranks, FSDP across the pairs."""
# ruff: noqa: T201

import os
import socket

import torch
import torch.distributed as dist
from accident import accident
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

TP = 2


class FeedForward(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert world_size % TP == 0, f"{world_size} processes cannot be put in pairs"
mesh = init_device_mesh("cpu", (world_size // TP, TP), mesh_dim_names=("dp", "tp"))

torch.manual_seed(0)
model = nn.Sequential(FeedForward(16), FeedForward(16))
for block in model:
    parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(block, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)

torch.manual_seed(mesh["dp"].get_local_rank())  # both ranks of a pair have the same batch
for step in range(3):
    batch = torch.randn(8, 16)
    (model(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:
        accident(rank)

hosts = [None] * TP
dist.all_gather_object(hosts, socket.gethostname(), group=mesh["tp"].get_group())
total = sum(p.full_tensor().detach().double().square().sum() for p in model.parameters())
print(f"rank {rank} of {world_size}: weights {total:.9f}")
print(f"rank {rank} shares its tensors within {'+'.join(hosts)}")
dist.destroy_process_group()
