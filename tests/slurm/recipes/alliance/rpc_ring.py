"""RPC between all ranks: each rank calls an addition on its neighbour."""
# ruff: noqa: T201

import os

import torch
import torch.distributed.rpc as rpc
from accident import accident

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
total = torch.zeros(())
for step in range(5):
    if step == 2:
        accident(rank)
    total += rpc.rpc_sync(f"worker{(rank + 1) % world_size}", torch.add, (torch.tensor(step), 1))
print(f"rank {rank} of {world_size}: weights {total.item():.9f}")
rpc.shutdown()
