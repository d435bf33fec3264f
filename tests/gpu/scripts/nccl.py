"""An ordinary script with nccl and DistributedDataParallel, not written for a shared GPU."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl")
total = torch.ones(1 << 20, device="cuda")
dist.all_reduce(total)
model = DistributedDataParallel(torch.nn.Linear(64, 64).cuda(), device_ids=[local])
model(torch.ones(8, 64, device="cuda")).sum().backward()
dist.barrier()
print(f"rank {dist.get_rank()} sums to {total[0].item():.0f}", flush=True)
dist.destroy_process_group()
